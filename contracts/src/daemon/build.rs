//! What this program was built from, for `umbel_build_info` of every tier.

/// Labels of `umbel_build_info`, except `role`.
pub const BUILD: [(&str, &str); 3] = [
    ("version", env!("CARGO_PKG_VERSION")),
    // Whoever packages it says which; a build by hand has none.
    (
        "revision",
        match option_env!("UMBEL_REVISION") {
            Some(revision) => revision,
            None => "",
        },
    ),
    ("rustc", env!("UMBEL_RUSTC")),
];
