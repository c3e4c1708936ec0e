//! What a change of CA needs: the new one signed by the old, and whether one has signed a given certificate.
//!
//! Owns the bridge certificate. Leaves which CA signs, and for how long both are trusted, to whoever changes it.
//! Invariant: a bridge holds the new CA's name and key and nothing else of ours; a peer that trusts only the old CA
//! reaches a leaf of the new one through it, and a peer that trusts the new one never needs it.

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyUsagePurpose, SerialNumber, SubjectPublicKeyInfo};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Authority, AuthorityError, common_name, random_serial, set_times};
use crate::clock::Wall;
use crate::peer::PeerCertificate;

/// Longest CA name that is shown.
const NAME_SHOWN: usize = 64;

impl Authority {
    /// The certificate that says, in the name of this CA, that `other` (made by [`Authority::create`]) is one too.
    /// It ends when the first of the two ends.
    ///
    /// # Errors
    /// [`AuthorityError::Request`] if `other` is not a CA's certificate that was made here.
    pub fn bridge(
        &self,
        other: &CertificateDer<'_>,
        now: Wall,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let refused = |why: &str| AuthorityError::Request(why.to_owned());
        let (_, parsed) =
            X509Certificate::from_der(other).map_err(|_| refused("the other CA is not X.509"))?;
        let name = common(&parsed).ok_or_else(|| refused("the other CA has no common name"))?;
        let key = SubjectPublicKeyInfo::from_der(parsed.public_key().raw)?;
        let ends = [self.not_after(), wall_after(&parsed)].into_iter().min().unwrap_or(now);
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&name);
        params.serial_number = Some(SerialNumber::from_slice(&random_serial()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.use_authority_key_identifier_extension = true;
        let life = u64::try_from(ends.unix_ms().saturating_sub(now.unix_ms())).unwrap_or(0);
        set_times(&mut params, now, Duration::from_millis(life));
        let bridge = params.signed_by(&key, &self.issuer)?.der().clone();
        // A path is found by comparing names byte for byte: an imported CA may spell the same name in another way.
        let (_, made) = X509Certificate::from_der(&bridge).map_err(|_| refused("the bridge is not X.509"))?;
        if made.subject().as_raw() != parsed.subject().as_raw() {
            return Err(refused("the other CA's name cannot be repeated exactly"));
        }
        Ok(bridge)
    }

    /// Whether this CA has signed `leaf`, a client's certificate; its time does not matter.
    #[must_use]
    pub fn has_signed(&self, leaf: &CertificateDer<'_>) -> bool {
        crate::tls::signed_client(&self.certificate, leaf)
    }

    /// When this CA began.
    #[must_use]
    pub fn not_before(&self) -> Wall {
        PeerCertificate::parse(&self.certificate).map_or(Wall(0), |parsed| parsed.not_before)
    }

    /// When this CA ends.
    #[must_use]
    pub fn not_after(&self) -> Wall {
        PeerCertificate::parse(&self.certificate).map_or(Wall(0), |parsed| parsed.not_after)
    }
}

/// Whose certificate it is, and who signed it, as their common names; made safe to show. Empty where there is none.
#[must_use]
pub fn names(certificate: &[u8]) -> (String, String) {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Default::default() };
    let first = |name: &x509_parser::x509::X509Name<'_>| {
        let text = name.iter_common_name().next().and_then(|one| one.as_str().ok()).unwrap_or_default();
        text.chars().filter(|one| one.is_ascii_graphic() || *one == ' ').take(NAME_SHOWN).collect()
    };
    (first(parsed.subject()), first(parsed.issuer()))
}

fn common(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned)
}

fn wall_after(certificate: &X509Certificate<'_>) -> Wall {
    Wall(certificate.validity().not_after.timestamp().saturating_mul(1000))
}
