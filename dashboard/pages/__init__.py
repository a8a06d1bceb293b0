"""The pages of the inspector: each module draws one with `render()`."""
