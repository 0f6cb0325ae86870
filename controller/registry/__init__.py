"""Objects over the store: admission, defaults, patches, selectors, generations."""
