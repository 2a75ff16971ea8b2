"""A local web page: show it drawings or photographs, watch a start adapt, see it recognise more."""
