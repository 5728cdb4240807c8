"""Charts as inline SVG: shapes with classes that the page's style sheet colors, and text that can be selected."""
