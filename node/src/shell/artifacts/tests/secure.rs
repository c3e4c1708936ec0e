//! A source over TLS: whom it is trusted by, and that nothing leads from there into the clear.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use umbel_wire::{
    ca::Authority,
    clock::Wall,
    tls::{front_server, to_pem},
};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn earlier(by: Duration) -> Wall {
    Wall(Wall::now().unix_ms() - i64::try_from(by.as_millis()).unwrap())
}

/// A TLS front before the hub.
async fn front(hub: SocketAddr, authority: &Authority, name: &str, now: Wall) -> SocketAddr {
    let credential = authority.issue_server(&[name.to_owned()], now, HOUR).unwrap();
    let tls = front_server(credential.chain, credential.key.private_key()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = tokio_rustls::TlsAcceptor::from(tls.config());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut behind = TcpStream::connect(hub).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
            });
        }
    });
    address
}

/// A site whose source `hub` is this front, trusting this authority.
async fn secured(name: &str, trusted: bool) -> (Site, SocketAddr) {
    secured_at(name, trusted, Wall::now()).await
}

/// The front's certificate was made at this time, and lasts an hour.
async fn secured_at(name: &str, trusted: bool, made: Wall) -> (Site, SocketAddr) {
    let mut site = Site::new();
    let folder = site.folder.path().to_owned();
    // The authority itself is valid throughout.
    let authority =
        Authority::create(&folder.join("ca"), "hub", earlier(Duration::from_secs(86_400))).unwrap();
    let other = Authority::create(&folder.join("other"), "other", Wall::now()).unwrap();
    let address = front(site.hub.address, &authority, name, made).await;
    let ca_file = folder.join("trusted.pem");
    let trusts = if trusted { &authority } else { &other };
    fs::write(&ca_file, to_pem(std::slice::from_ref(trusts.certificate_der()))).unwrap();
    let mut settings = site.artifacts.settings.clone();
    let remote = config::Remote {
        secure: true,
        authority: format!("localhost:{}", address.port()),
        base_path: String::new(),
        token_file: Some(folder.join("token")),
        ca_file: Some(ca_file),
    };
    settings.sources.insert("hub".into(), config::Source::Hub(remote));
    site.artifacts = Arc::new(Artifacts::with_patience(settings, patience()));
    (site, address)
}

#[tokio::test]
async fn a_named_authority_is_trusted_and_no_other() {
    let (site, _) = secured("localhost", true).await;
    let model = bytes(200_000);
    let wanted = site.wanted(&[("m", &model)]);
    let done = site.acquire(&wanted).await.unwrap();
    assert_eq!(site.placed(&done, "m"), model);
    assert_eq!(site.hub.seen()[0].headers["authorization"], "Bearer hf_secret");
}

/// Each by its own name, since another hand mends it, and some are over by themselves.
#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_told_apart() {
    use Reason::{SourceCertificateExpired, SourceCertificateOtherName, SourceCertificateUntrusted};
    let later = Wall(Wall::now().unix_ms() + 48 * 3_600_000);
    let model = bytes(200);
    for (name, trusted, made, reason, says, retry) in [
        ("localhost", false, Wall::now(), SourceCertificateUntrusted, "authority that is not trusted", false),
        ("elsewhere.example", true, Wall::now(), SourceCertificateOtherName, "another host name", false),
        ("localhost", true, earlier(2 * HOUR), SourceCertificateExpired, "has expired", true),
        ("localhost", true, later, SourceCertificateExpired, "not valid yet", true),
    ] {
        let (site, _) = secured_at(name, trusted, made).await;
        let wanted = site.wanted(&[("m", &model)]);
        let failed = site.acquire(&wanted).await.unwrap_err();
        assert!(failed.reason == reason && failed.says.contains(says), "{failed}");
        assert_eq!((failed.retry(), failed.reason.cause().passes()), (retry, retry), "{failed}");
        assert!(failed.says.contains("source hub has") && !failed.says.contains("localhost"), "{failed}");
        assert!(!failed.says.contains("elsewhere") && failed.reason.is_of_source(), "{failed}");
        assert!(site.hub.seen().is_empty() && site.root_is_empty());
    }
}

#[tokio::test]
async fn nothing_leads_from_https_into_the_clear() {
    let (site, address) = secured("localhost", true).await;
    let wanted = site.wanted(&[("m", b"model")]);
    site.hub.fault("/m", Fault::Redirect(format!("{}/org/name/r1/m", site.hub.url())), 1);
    let failed = site.acquire(&wanted).await.unwrap_err();
    assert!(failed.reason == Reason::SourceRefused && failed.says.contains("https to http"), "{failed}");
    assert_eq!(site.hub.seen().len(), 1);
    // Within https it may, and back to the source's own host the token goes again.
    site.hub.add("org/name", "r1", "n", *b"model");
    site.hub.fault("/m", Fault::Redirect(format!("https://localhost:{}/org/name/r1/n", address.port())), 1);
    site.acquire(&wanted).await.unwrap();
    assert!(site.hub.seen()[2].headers.contains_key("authorization"));
}

#[tokio::test]
async fn a_token_that_others_can_read_is_not_used() {
    let site = Site::new();
    let token = site.folder.path().join("token");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let wanted = site.wanted(&[("m", b"model")]);
    let failed = site.acquire(&wanted).await.unwrap_err();
    assert!(failed.reason == Reason::SourceRefused && failed.says.contains("token_file"), "{failed}");
    assert!(!failed.says.contains(token.to_str().unwrap()) && site.hub.seen().is_empty());
}
