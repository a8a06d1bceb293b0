"""The little CSS that the theme cannot say: tabular figures, and room at the top."""

STYLE = """<style>
[data-testid="stMetricValue"], [data-testid="stDataFrame"], .tabular { font-variant-numeric: tabular-nums; }
[data-testid="stMainBlockContainer"] { padding-top: 3.5rem; padding-bottom: 2rem; }
.st-key-strip { margin-bottom: 0.5rem; }
.st-key-strip p { margin: 0; }
/* Its "Stop" ends a drawing of the page, and reads as if it ended the server. */
[data-testid="stStatusWidget"] { display: none; }
</style>"""
