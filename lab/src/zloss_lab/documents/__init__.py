"""Documents of paragraphs, tables and pictures, and their rendering as one HTML page and as Markdown."""
