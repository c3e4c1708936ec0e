//! `umbel control-plane init`: makes the authority and the first admin's token.
//!
//! Invariant: it never replaces anything; a second call refuses and names what stands there.

use std::path::{Path, PathBuf};

use umbel_contracts::objects::{OperatorRequest, Role};
use umbel_store::{Commit, Store};
use umbel_wire::ca::{Authority, CERTIFICATE_FILE};
use umbel_wire::clock::Wall;
use umbel_wire::files;
use umbel_wire::token::{BearerKind, mint_bearer};

use crate::core::audit::{Deed, Detail};
use crate::core::operators::{OPERATORS, new_row};
use crate::shell::authority::ca_dir;
use crate::{Config, StartError};

/// File of the first admin's token in the state directory.
pub(crate) const TOKEN_FILE: &str = "admin.token";
/// File of the store in the state directory.
pub(crate) const STORE_FILE: &str = "store.redb";
/// Whose the store is.
pub(crate) const STORE_OWNER: &str = "control-plane";

/// What `init` made. The token itself stands only in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initialised {
    /// The authority's certificate, PEM: what `ctl --ca-file` takes.
    pub ca_file: PathBuf,
    /// SHA-256 of the authority's certificate, in hexadecimal.
    pub ca_sha256: String,
    /// The first admin's token, mode 0600.
    pub token_file: PathBuf,
}

/// Makes the state directory's contents. Blocks for less than a second.
///
/// # Errors
/// If something of it exists already, or the directory cannot be written.
pub fn init(config: &Config) -> Result<Initialised, StartError> {
    let state = config.state_dir.as_path();
    files::private_dir(state).map_err(|error| StartError::State(format!("{}: {error}", state.display())))?;
    let token_file = state.join(TOKEN_FILE);
    let ca_file = ca_dir(config).join(CERTIFICATE_FILE);
    for made in [&ca_file, &state.join(STORE_FILE), &token_file] {
        if made.exists() {
            return Err(StartError::State(format!(
                "{} exists: this control plane was initialised before, and nothing was changed. Start it with \
                 `umbel control-plane`. A lost admin token is replaced with `umbel ctl --socket {} operator create`.",
                made.display(),
                config.socket.display()
            )));
        }
    }
    let authority = Authority::create(&ca_dir(config), &config.name, Wall::now())
        .map_err(|error| StartError::State(error.to_string()))?;
    first_admin(&state.join(STORE_FILE), &token_file)?;
    let ca_sha256 = data_encoding::HEXLOWER.encode(&authority.digest());
    Ok(Initialised { ca_file, ca_sha256, token_file })
}

/// Stores the first admin and writes the token's file. The file comes first: a token that opens nothing yet is
/// harmless, and an admin without a token would be of no use.
fn first_admin(store: &Path, token_file: &Path) -> Result<(), StartError> {
    let (operator_id, token, hash) = mint_bearer(BearerKind::OperatorToken);
    let request = OperatorRequest {
        operator_id: operator_id.clone(),
        secret_sha256: hash.to_hex(),
        name: "admin".into(),
        role: Role::Admin,
    };
    let row = new_row(&request, "init", Wall::now().unix_ms())
        .map_err(|error| StartError::Failed(error.message))?;
    files::write_private(token_file, format!("{}\n", token.expose()).as_bytes())
        .map_err(|error| StartError::State(format!("{}: {error}", token_file.display())))?;
    let deed = Deed {
        actor: "init".into(),
        action: "operator.create",
        subject: "admin (admin)".into(),
        outcome: "succeeded".into(),
        detail: Detail::default(),
        ..Deed::default()
    };
    let commit = Commit::new()
        .require_absent(OPERATORS, operator_id.as_str())
        .put_json(OPERATORS, operator_id.as_str(), &row)
        .audit(deed.record());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| StartError::Failed(format!("cannot start a runtime: {error}")))?;
    runtime.block_on(async {
        let store = Store::open(store, STORE_OWNER).map_err(|error| StartError::State(error.to_string()))?;
        store.commit(commit).await.map_err(|error| StartError::State(error.to_string()))?;
        store.close().await;
        Ok(())
    })
}
