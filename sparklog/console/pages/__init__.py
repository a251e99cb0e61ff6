"""The pages: each module asks for what its pages show, and hands it to a template."""
