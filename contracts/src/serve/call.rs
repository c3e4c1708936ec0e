//! Who calls: the correlation id that every request gets, and the caller behind it.
//!
//! A local socket's authority is its file mode, so whoever reached it is admin; over the network a bearer token
//! decides. Invariant: a [`Caller`] exists only for a request that passed one of the two.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use umbel_wire::error::{Code, Error};

use super::Fleet;
use super::api::Api;
use super::problem::Failure;
use crate::objects::Role;

/// How a request reached the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A Unix socket that only its owner can open: callers are admin.
    Local,
    /// TCP: callers show a bearer token.
    Network,
}

/// Whoever a request came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// For the audit: the operator's name, or `local` for the socket.
    pub actor: String,
    /// What it may do.
    pub role: Role,
    /// The id of the token it showed; empty for the socket.
    pub token_id: String,
    /// The request's id in logs, audit and answers.
    pub correlation_id: String,
}

/// Whom a bearer token belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// The operator's name, for the audit.
    pub actor: String,
    /// What it may do.
    pub role: Role,
    /// The token's id, which is no secret.
    pub token_id: String,
}

impl Caller {
    /// Refuses a caller whose role is below the one that is needed.
    pub(super) fn need(&self, role: Role) -> Result<(), Error> {
        if self.role >= role {
            return Ok(());
        }
        Err(Error::new(
            Code::PermissionDenied,
            "ROLE_TOO_LOW",
            format!("This needs the role {}; `{}` has {}.", role.as_str(), self.actor, self.role.as_str()),
        ))
    }
}

/// The correlation id, put into the request by the outermost layer.
#[derive(Clone)]
pub(super) struct CorrelationId(pub(super) Arc<str>);

impl CorrelationId {
    /// The client's own id if it is one that may stand in logs, else a new one.
    pub(super) fn of(headers: &axum::http::HeaderMap) -> Self {
        let theirs = headers.get("x-request-id").and_then(|value| value.to_str().ok());
        match theirs {
            Some(id) if valid(id) => Self(id.into()),
            _ => Self(format!("req_{}", uuid::Uuid::new_v4().simple()).into()),
        }
    }
}

fn valid(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

impl<F: Fleet> FromRequestParts<Api<F>> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, api: &Api<F>) -> Result<Self, Failure> {
        let correlation_id =
            parts.extensions.get::<CorrelationId>().map(|id| id.0.to_string()).unwrap_or_default();
        if api.door == Door::Local {
            return Ok(Self {
                actor: "local".into(),
                role: Role::Admin,
                token_id: String::new(),
                correlation_id,
            });
        }
        let mut values = parts.headers.get_all(AUTHORIZATION).iter();
        let token = match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok().and_then(bearer),
            _ => None,
        };
        let Some(token) = token else {
            return Err(Error::new(
                Code::Unauthenticated,
                "TOKEN_MISSING",
                "Send an operator token as `Authorization: Bearer ...`.",
            )
            .into());
        };
        let Bearer { actor, role, token_id } = api.fleet.authenticate(token).await?;
        Ok(Self { actor, role, token_id, correlation_id })
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}
