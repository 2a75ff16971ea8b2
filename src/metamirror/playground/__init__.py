"""A local web page: draw a few signs, watch a start adapt to them, see it recognise new ones."""
