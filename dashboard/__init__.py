"""The Streamlit inspector; it reads the Observer over HTTP only."""
