//! What an etcd asks of its clients: TLS with the authority that they trust and a certificate of theirs, and a user's token.

use super::url::{EtcdUrl, Tls, User};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error as TlsError, RootCertStore,
    Stream,
};
use std::fs;
use std::io::Read;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Error};

/// Of a request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A connection takes this long at most.
    pub connect: Duration,
    /// Everything does.
    pub answer: Duration,
}

/// Who asks, with the files as they are now.
pub fn agent(url: &EtcdUrl, limits: Limits) -> Result<Agent, String> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(limits.answer))
        .timeout_connect(Some(limits.connect))
        .proxy(None);
    let config = match &url.tls {
        Some(tls) => config.tls_config(tls_config(tls)?),
        None => config,
    };
    Ok(config.build().new_agent())
}

fn tls_config(tls: &Tls) -> Result<TlsConfig, String> {
    let roots = match &tls.ca {
        Some(path) => RootCerts::Specific(Arc::new(certificates(path)?)),
        None => RootCerts::WebPki,
    };
    let client = match &tls.client {
        Some((cert, key)) => Some(client(cert, key)?),
        None => None,
    };
    Ok(TlsConfig::builder().root_certs(roots).client_cert(client).build())
}

/// A certificate and its key. Two that are no pair are refused: no connection can be made with them.
fn client(cert: &Path, key: &Path) -> Result<ClientCert, String> {
    let chain = certificates(cert)?;
    let bytes = read(key)?;
    let pair = PrivateKey::from_pem(&bytes)
        .ok()
        .zip(PrivateKeyDer::from_pem_slice(&bytes).ok());
    let Some((private, secret)) = pair else {
        return Err(format!(
            "{} has no private key in PEM format: correct --registry",
            key.display()
        ));
    };
    let ders = chain.iter().map(|part| CertificateDer::from(part.der().to_vec()));
    let provider = rustls::crypto::ring::default_provider();
    if let Err(error) = CertifiedKey::from_der(ders.collect(), secret, &provider) {
        return Err(format!(
            "{} and {} are no pair of certificate and key: {error}; correct --registry",
            cert.display(),
            key.display()
        ));
    }
    Ok(ClientCert::new_with_certs(&chain, private))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}; correct --registry", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let bytes = read(path)?;
    let found = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<_> = found.collect();
    match found.is_empty() {
        true => Err(format!(
            "{} has no certificate in PEM format: correct --registry",
            path.display()
        )),
        false => Ok(found),
    }
}

/// The password of a user: the first line of its file.
pub fn password(user: &User) -> Result<String, String> {
    let text = String::from_utf8(read(&user.password_file)?);
    let line = text.ok().and_then(|text| text.lines().next().map(str::to_owned));
    line.filter(|line| !line.is_empty()).ok_or_else(|| {
        format!(
            "{} has no password in its first line",
            user.password_file.display()
        )
    })
}

/// Why there is no connection with TLS, and what to do. True if the member has seen no request for certain: one side has refused the
/// other's certificate, which comes before all requests.
pub fn tls_trouble(error: &Error) -> Option<(String, bool)> {
    match error {
        Error::Rustls(error) => explained(error),
        Error::Io(error) => explained(error.get_ref()?.downcast_ref()?),
        _ => None,
    }
}

/// What a member says to a connection on which nothing is asked. A server that does not like a client's certificate hangs up when the
/// client may be sending already, and then never reads why.
pub fn diagnose(tls: &Tls, endpoint: &str, limits: Limits) -> Option<(String, bool)> {
    let mut roots = RootCertStore::empty();
    let trusted = certificates(tls.ca.as_ref()?).ok()?;
    roots.add_parsable_certificates(trusted.iter().map(|part| CertificateDer::from(part.der())));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().ok()?;
    let config = config.with_root_certificates(roots);
    let config = match &tls.client {
        Some((cert, key)) => {
            let chain = certificates(cert).ok()?;
            let chain = chain.iter().map(|part| CertificateDer::from(part.der().to_vec()));
            let key = PrivateKeyDer::from_pem_slice(&read(key).ok()?).ok()?;
            config.with_client_auth_cert(chain.collect(), key).ok()?
        }
        None => config.with_no_client_auth(),
    };
    let (host, _) = endpoint.rsplit_once(':')?;
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()?;
    let mut connection = ClientConnection::new(Arc::new(config), name).ok()?;
    let address = endpoint.to_socket_addrs().ok()?.next()?;
    let mut socket = TcpStream::connect_timeout(&address, limits.connect).ok()?;
    socket.set_read_timeout(Some(limits.connect)).ok()?;
    // Nothing comes from a member that has nothing against the client.
    let told = Stream::new(&mut connection, &mut socket).read(&mut [0]);
    explained(told.err()?.get_ref()?.downcast_ref()?)
}

fn explained(error: &TlsError) -> Option<(String, bool)> {
    use AlertDescription as Alert;
    let remedy = match error {
        TlsError::InvalidCertificate(why) => certificate_remedy(why),
        TlsError::AlertReceived(Alert::CertificateRequired) => {
            "it asks for a client's certificate: write cert=FILE&key=FILE in --registry"
        }
        // Servers of TLS 1.2 say so, too, if there is none.
        TlsError::AlertReceived(
            Alert::BadCertificate
            | Alert::UnknownCA
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnsupportedCertificate
            | Alert::AccessDenied
            | Alert::HandshakeFailure,
        ) => {
            "it refuses the client's certificate, or the lack of one: correct cert=FILE&key=FILE in --registry"
        }
        TlsError::InvalidMessage(_) => {
            return Some((
                format!("{error}: if it does not speak TLS, write etcd:// in --registry"),
                false,
            ));
        }
        _ => return None,
    };
    Some((format!("{error}: {remedy}"), true))
}

fn certificate_remedy(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::UnknownIssuer => {
            "its certificate is of an authority that is not trusted: name that one with ca=FILE in --registry"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for other addresses: name the member as its certificate does"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired: renew it"
        }
        _ => "its certificate is not valid: give it another one",
    }
}
