"""The product: settings, database, service, pages, HTTP and command line. Only this package imports the other two."""
