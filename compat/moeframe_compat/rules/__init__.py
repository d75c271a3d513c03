"""The rules, one file per family. `catalogue.toml` names them, `explanations.toml` explains them."""
