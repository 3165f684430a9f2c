"""The product: settings, database, service, pages, HTTP and command line. Only this package knows both others."""
