//! What is told of each answered request, for metrics.
//!
//! Invariant: a route is told by its template and a method by a word of its own, so that no client makes new series.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::{Next, from_fn};

/// One answered request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answered<'a> {
    /// The route's template, `/api/v1/edges/{edge}`; `other` for what is no route.
    pub route: &'a str,
    /// The method in capitals; `OTHER` for those that no route takes.
    pub method: &'static str,
    /// The answer's status.
    pub status: u16,
    /// From the request's head to the answer's.
    pub seconds: f64,
}

/// The router, telling of every answer.
pub fn measured(router: Router, tell: impl Fn(&Answered<'_>) + Send + Sync + 'static) -> Router {
    let tell = Arc::new(tell);
    router.layer(from_fn(move |request: Request, next: Next| {
        let tell = Arc::clone(&tell);
        async move {
            let begun = Instant::now();
            let path = request.extensions().get::<MatchedPath>().cloned();
            let method = word(request.method());
            let response = next.run(request).await;
            tell(&Answered {
                route: path.as_ref().map_or("other", MatchedPath::as_str),
                method,
                status: response.status().as_u16(),
                seconds: begun.elapsed().as_secs_f64(),
            });
            response
        }
    }))
}

fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "OTHER",
    }
}
