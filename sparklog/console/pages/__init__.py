"""The pages: each module requests the data of its pages, and fills a template."""
