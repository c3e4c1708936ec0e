//! New secrets: enrollment tokens, API keys, operator tokens.
//!
//! Owns making and composing them. Invariant: the server is told id and SHA-256 only; the text exists in this
//! process alone, until it is handed over once.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::{Map, Value};
use umbel_contracts::objects::{EdgeEnrollmentObject, EdgeEnrollmentRequest, OperatorRequest, Role};
use umbel_contracts::operations::{AnotherToken, ApiKeyCreateArgs, EnrollmentCreateArgs, KeyLimitsArgs};
use umbel_wire::{
    EdgeId,
    secret::{Secret, SecretText},
    token::{BearerKind, EnrollmentToken, TokenKind, mint_bearer, new_id},
};

use crate::{
    calls::{Call, new_command_id},
    client::{Client, parse},
    exit::{Failure, Outcome},
};

/// How long a server may take to store a new credential.
const WAIT: Duration = Duration::from_secs(10);

/// A new secret and what the server said about it.
#[derive(Debug)]
pub(crate) struct Minted {
    /// The secret's text.
    pub(crate) text: SecretText,
    /// Its id: may be shown.
    pub(crate) id: String,
    /// The server's object, as JSON.
    pub(crate) raw: String,
    /// When it ends, if it does.
    pub(crate) expires_at: Option<jiff::Timestamp>,
}

impl Minted {
    /// The server's object with the secret under `key`: what `-o json` prints.
    pub(crate) fn with_secret(&self, key: &str) -> Outcome<String> {
        let mut object: Map<String, Value> = parse(&self.raw)?;
        object.insert(key.to_owned(), self.text.expose().into());
        serde_json::to_string(&object).map_err(|error| Failure::failed(error.to_string()))
    }

    /// The same for one token of several: with its own id, and the name that it is for.
    pub(crate) fn with_secret_for(&self, name: &str) -> Outcome<String> {
        let mut object: Map<String, Value> = parse(&self.with_secret("token")?)?;
        object.insert("token_id".to_owned(), self.id.as_str().into());
        object.insert("name".to_owned(), name.into());
        serde_json::to_string(&object).map_err(|error| Failure::failed(error.to_string()))
    }
}

/// What is asked of a token for a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeTokenWish {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) expires: Duration,
    pub(crate) eligible: bool,
    /// The node that it gives a new key to.
    pub(crate) replace: Option<String>,
}

/// What is read of the result of `enrollment.create`.
#[derive(Debug, Deserialize)]
struct Issued {
    edge_id: String,
    addresses: Vec<String>,
    ca_sha256: String,
    expires_at: Option<jiff::Timestamp>,
}

/// How a write is sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manner {
    pub(crate) reason: Option<String>,
    pub(crate) dry_run: bool,
    pub(crate) command_id: Option<String>,
}

/// A token for one node of `edge`. `None` when the run was dry.
pub(crate) async fn node_token(
    client: &Client,
    edge: &str,
    wish: &NodeTokenWish,
    manner: &Manner,
) -> Outcome<Option<Minted>> {
    let made = node_tokens(client, edge, wish, std::slice::from_ref(&wish.name), manner).await?;
    Ok(made.into_iter().next())
}

/// A token for each of `names`, at most [`TOKENS_AT_ONCE`], all or none in one command; all else is as `wish` says. None
/// when the run was dry.
///
/// [`TOKENS_AT_ONCE`]: umbel_contracts::operations::TOKENS_AT_ONCE
pub(crate) async fn node_tokens(
    client: &Client,
    edge: &str,
    wish: &NodeTokenWish,
    names: &[String],
    manner: &Manner,
) -> Outcome<Vec<Minted>> {
    let secrets: Vec<(String, Secret)> = names.iter().map(|_| (new_id(), Secret::generate())).collect();
    let mut all = secrets.iter().zip(names).map(|((id, secret), name)| AnotherToken {
        token_id: id.clone(),
        secret_sha256: secret.hash().to_hex(),
        name: name.clone(),
    });
    let Some(first) = all.next() else { return Ok(Vec::new()) };
    let args = EnrollmentCreateArgs {
        token_id: first.token_id,
        secret_sha256: first.secret_sha256,
        name: first.name,
        labels: wish.labels.clone(),
        expires_in_seconds: wish.expires.as_secs(),
        eligible: wish.eligible,
        replace: wish.replace.clone(),
        more: all.collect(),
    };
    let raw = send(client, edge, Call::new("enrollment.create").args(&args)?, manner).await?;
    if manner.dry_run {
        return Ok(Vec::new());
    }
    let issued: Issued = parse(&raw)?;
    let made = secrets.into_iter().map(|(id, secret)| {
        let text = compose(TokenKind::Node, &issued, &id, secret)?;
        Ok(Minted { text, id, raw: raw.clone(), expires_at: issued.expires_at })
    });
    made.collect()
}

/// A token with which the edge of `site` joins this control plane.
pub(crate) async fn edge_token(client: &Client, site: &str, expires: Duration) -> Outcome<Minted> {
    let (token_id, secret) = (new_id(), Secret::generate());
    let body = EdgeEnrollmentRequest {
        token_id: token_id.clone(),
        secret_sha256: secret.hash().to_hex(),
        edge_id: site.to_owned(),
        expires_in_seconds: Some(expires.as_secs()),
    };
    let answer = client.post("/api/v1/edge-enrollments", &[], &body, Duration::ZERO).await?;
    let object: EdgeEnrollmentObject = answer.parse()?;
    let ca_sha256 =
        object.ca_sha256.ok_or_else(|| Failure::failed("the server did not say its CA's digest"))?;
    let issued = Issued {
        edge_id: object.edge_id,
        addresses: object.addresses,
        ca_sha256,
        expires_at: Some(object.expires_at),
    };
    let text = compose(TokenKind::Edge, &issued, &token_id, secret)?;
    Ok(Minted { text, id: token_id, raw: answer.raw()?.to_owned(), expires_at: issued.expires_at })
}

/// What is asked of a key for an application.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyWish {
    pub(crate) name: String,
    /// Only these; all if there are none.
    pub(crate) models: Vec<String>,
    pub(crate) priority: Option<u8>,
    pub(crate) limits: KeyLimitsArgs,
}

/// A key for an application of `edge`. `None` when the run was dry.
pub(crate) async fn api_key(
    client: &Client,
    edge: &str,
    wish: KeyWish,
    manner: &Manner,
) -> Outcome<Option<Minted>> {
    let (key_id, text, hash) = mint_bearer(BearerKind::ApiKey);
    let args = ApiKeyCreateArgs {
        key_id: key_id.clone(),
        secret_sha256: hash.to_hex(),
        name: wish.name,
        models: Some(wish.models).filter(|models| !models.is_empty()),
        priority: wish.priority,
        limits: wish.limits,
    };
    let raw = send(client, edge, Call::new("apikey.create").args(&args)?, manner).await?;
    Ok((!manner.dry_run).then_some(Minted { text, id: key_id, raw, expires_at: None }))
}

/// A token for an operator of this control plane.
pub(crate) async fn operator(client: &Client, name: &str, role: Role) -> Outcome<Minted> {
    let (operator_id, text, hash) = mint_bearer(BearerKind::OperatorToken);
    let body = OperatorRequest {
        operator_id: operator_id.clone(),
        secret_sha256: hash.to_hex(),
        name: name.to_owned(),
        role,
    };
    let answer = client.post("/api/v1/operators", &[], &body, Duration::ZERO).await?;
    Ok(Minted { text, id: operator_id, raw: answer.raw()?.to_owned(), expires_at: None })
}

async fn send(client: &Client, edge: &str, call: Call, manner: &Manner) -> Outcome<String> {
    let call = call.reason(manner.reason.as_deref()).dry_run(manner.dry_run);
    let id = manner.command_id.clone().unwrap_or_else(new_command_id);
    let told = client.command(edge, &id, &call, WAIT).await?;
    told.result_raw()
}

fn compose(kind: TokenKind, issued: &Issued, token_id: &str, secret: Secret) -> Outcome<SecretText> {
    let wrong =
        |what: &str| Failure::failed(format!("the server's answer is not what a token needs: {what}"));
    let digest = data_encoding::HEXLOWER_PERMISSIVE.decode(issued.ca_sha256.as_bytes());
    let ca_digest =
        digest.ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| wrong("the CA's digest"))?;
    let token = EnrollmentToken {
        kind,
        edge_id: EdgeId::parse(&issued.edge_id).map_err(|_| wrong("the site's name"))?,
        token_id: token_id.to_owned(),
        ca_digest,
        addresses: issued.addresses.clone(),
        secret,
    };
    token.to_text().map_err(|error| {
        wrong(&error.to_string())
            .remedy("set `advertise` in the issuing daemon's file to what others can dial")
    })
}
