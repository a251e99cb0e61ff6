"""The pages of the console. Each module requests the data of its pages and fills their templates."""
