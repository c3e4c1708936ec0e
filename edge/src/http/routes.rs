//! Which path asks an engine for what.
//!
//! Owns the list of routes that are relayed, and what is tolerated in the spelling of a path: clients join a base URL
//! and a route with one slash too many. Invariant: what a node is asked for stands in this list, whatever was sent.

use crate::metrics::Route;

/// What is known of a relayed route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) route: Route,
    /// The path at the engine.
    pub(super) path: &'static str,
}

impl Endpoint {
    /// Its body is a form, not JSON.
    pub(super) fn takes_a_form(self) -> bool {
        self.route == Route::Transcriptions
    }

    /// Its stream can be asked to tell the usage: the field for it is one of chat and completions only.
    pub(super) fn can_tell_usage(self) -> bool {
        matches!(self.route, Route::Chat | Route::Completions)
    }

    /// The engine keeps what it made, so that a second run would leave two of it.
    pub(super) fn has_effects(self) -> bool {
        self.route == Route::Responses
    }
}

/// The relayed route of a path, if it is one.
pub(super) fn endpoint(path: &str) -> Option<Endpoint> {
    let name = below_v1(path)?;
    let (route, path) = match name {
        "chat/completions" => (Route::Chat, "/v1/chat/completions"),
        "completions" => (Route::Completions, "/v1/completions"),
        "embeddings" => (Route::Embeddings, "/v1/embeddings"),
        "responses" => (Route::Responses, "/v1/responses"),
        "rerank" => (Route::Rerank, "/v1/rerank"),
        "audio/transcriptions" => (Route::Transcriptions, "/v1/audio/transcriptions"),
        _ => return None,
    };
    Some(Endpoint { route, path })
}

/// What stands behind `/v1/`, without slashes around it.
pub(super) fn below_v1(path: &str) -> Option<&str> {
    let rest = path.trim_start_matches('/').strip_prefix("v1")?;
    (rest.starts_with('/') && path.starts_with('/')).then(|| rest.trim_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_too_many_is_no_other_route() {
        for path in
            ["/v1/responses", "//v1/responses", "/v1//responses", "/v1/responses/", "///v1///responses//"]
        {
            assert_eq!(endpoint(path).map(|found| found.path), Some("/v1/responses"), "{path}");
        }
        for path in [
            "/v1responses",
            "v1/responses",
            "/v2/responses",
            "/v1/",
            "/v1",
            "/x/v1/responses",
            "/v1/responses/x",
        ] {
            assert_eq!(endpoint(path), None, "{path}");
        }
    }
}
