"""Components that draw on a canvas from a stream of their own, without a rerun of the page."""
