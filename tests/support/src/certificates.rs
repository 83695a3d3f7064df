//! An authority and certificates of it, as PEM files.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};

/// Signs certificates and keeps them in a folder.
pub struct Authority {
    folder: PathBuf,
    certificate: Certificate,
    key: KeyPair,
}

/// Where a certificate, its key and that of an authority are.
#[derive(Clone, Debug)]
pub struct Identity {
    /// PEM.
    pub certificate: PathBuf,
    /// PEM.
    pub key: PathBuf,
    /// PEM.
    pub authority: PathBuf,
}

impl Authority {
    /// A new one, unlike all others. All have the same name.
    pub fn new(folder: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        fs::create_dir_all(folder).expect("a folder for certificates");
        fs::write(folder.join("authority.pem"), certificate.pem()).expect("a file");
        Self { folder: folder.to_owned(), certificate, key }
    }

    /// A certificate for a process that others call by these names and addresses.
    pub fn issue(&self, name: &str, hosts: &[&str]) -> Identity {
        self.sign(name, params(name, hosts))
    }

    /// One that was valid long ago.
    pub fn issue_expired(&self, name: &str, hosts: &[&str]) -> Identity {
        let mut params = params(name, hosts);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(name, params)
    }

    fn sign(&self, name: &str, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.certificate, &self.key).expect("a certificate");
        let at = |extension: &str| self.folder.join(format!("{name}.{extension}"));
        fs::write(at("pem"), signed.pem()).expect("a file");
        fs::write(at("key"), key.serialize_pem()).expect("a file");
        let authority = self.folder.join("authority.pem");
        Identity { certificate: at("pem"), key: at("key"), authority }
    }
}

fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(hosts).expect("names of hosts");
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

impl Identity {
    /// The same one, who believes another authority.
    #[must_use]
    pub fn believing(&self, other: &Self) -> Self {
        Self { authority: other.authority.clone(), ..self.clone() }
    }

    /// As arguments of `forebay`.
    pub fn arguments(&self) -> [&str; 6] {
        [
            "--tls-cert",
            text(&self.certificate),
            "--tls-key",
            text(&self.key),
            "--tls-ca",
            text(&self.authority),
        ]
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of a test is text")
}
