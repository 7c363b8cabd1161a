"""Release → mixture, on the server."""
