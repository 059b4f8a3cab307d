"""Charts in a terminal: from series to cells, axes and captions, zooming and panning, and the keys of charts."""
