"""The Streamlit script, in a folder of its own: a folder `pages` beside it would be taken for scripts too."""
