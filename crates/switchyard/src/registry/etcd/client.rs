//! Requests to the members of an etcd, through its documented JSON gateway (`/v3/kv/…`, etcd 3.4 and newer).
//!
//! A user of an etcd with authentication has a token, which etcd forgets after some minutes or a restart: it is asked for anew
//! then.
//!
//! Invariants: every wait has a limit. The client asks one member after the other for what it reads. It asks another
//! member for a change only if the first one cannot have seen the request.

use super::access::{self, Limits};
use super::url::{EtcdUrl, TLS_SCHEME, User};
use rack::registry::RegistryError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use ureq::{Agent, Timeout};

/// A connection takes this long at most.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// A member answers within this, or another one is asked. An election of a leader takes one to two seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const LIMITS: Limits = Limits {
    connect: CONNECT_WITHIN,
    answer: ANSWER_WITHIN,
};
/// No other member is asked after this.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of an answer at most: base64 of what the largest `--max-request-bytes` would take.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Why a request failed.
#[derive(Debug)]
enum Trouble {
    /// The member cannot have seen the request.
    Unsent(String),
    /// Nor will it see another one, before somebody has corrected something.
    Barred(String),
    /// The token is none any more: the request has not happened.
    Token(String),
    /// The member has refused it: it has not happened, and will not.
    Refused(String),
    /// It may have happened, or still happen.
    Unknown(String),
}

/// The refusals that no other attempt changes: a part of etcd's words, and what to do.
const REFUSALS: &[(&str, &str)] = &[
    (
        "request is too large",
        "start each member of etcd with a higher --max-request-bytes (1.5 MiB by default)",
    ),
    (
        "received message larger than max",
        "start each member of etcd with a higher --max-request-bytes (1.5 MiB by default)",
    ),
    (
        "database space exceeded",
        "compact and defragment etcd, disarm its alarm (etcdctl compact, defrag, alarm disarm), and start each member \
         with --auto-compaction-retention=1h",
    ),
    (
        "user name is empty",
        "it asks for a user: write ?user=NAME&password-file=FILE behind the prefix in --registry",
    ),
    (
        "invalid user ID or password",
        "correct user=NAME in --registry, or the first line of its password-file",
    ),
    (
        "permission denied",
        "let the user's role read and write the keys of the prefix (etcdctl role grant-permission --prefix=true ROLE readwrite)",
    ),
    (
        "authentication is not enabled",
        "take user and password-file out of --registry, or enable it (etcdctl auth enable)",
    ),
];

/// A part of etcd's words for a token that it does not know, or no more.
const TOKENS: &[&str] = &["invalid auth token", "revision of auth store is old"];

/// What etcd says of a request that failed.
#[derive(Deserialize)]
struct Problem {
    error: String,
}

/// The members of an etcd.
#[derive(Debug)]
pub struct Client {
    url: EtcdUrl,
    /// The member that is asked first: the last one that answered, or the one after it.
    first: Cell<usize>,
    /// Made when it is needed, and anew after a connection with TLS has failed: the files may be others by then.
    agent: RefCell<Option<Agent>>,
    /// Of the user, if there is one.
    token: RefCell<Option<String>>,
}

impl Client {
    /// Of the members at this address.
    pub fn new(url: &EtcdUrl) -> Self {
        assert!(!url.endpoints.is_empty(), "an address names a member");
        Self {
            url: url.clone(),
            first: Cell::new(0),
            agent: RefCell::new(None),
            token: RefCell::new(None),
        }
    }

    fn agent(&self) -> Result<Agent, Trouble> {
        let mut agent = self.agent.borrow_mut();
        if let Some(agent) = &*agent {
            return Ok(agent.clone());
        }
        let new = access::agent(&self.url, LIMITS).map_err(Trouble::Barred)?;
        Ok(agent.insert(new).clone())
    }

    /// Asks what changes nothing.
    pub fn read<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, RegistryError> {
        self.ask(path, body, true)
    }

    /// Asks for a change. [`RegistryError::Unavailable`] leaves open whether it has happened, or will.
    pub fn write<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, RegistryError> {
        self.ask(path, body, false)
    }

    fn ask<T: DeserializeOwned>(&self, path: &str, body: &Value, repeats: bool) -> Result<T, RegistryError> {
        let until = Instant::now() + ASK_WITHIN;
        let (mut told, mut all_bar) = (Vec::new(), true);
        for _ in 0..self.url.endpoints.len() {
            let endpoint = &self.url.endpoints[self.first.get()];
            let why = match self.ask_member(endpoint, path, body) {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Refused(why)) => {
                    return Err(RegistryError::Refused(format!("etcd at {endpoint}: {why}")));
                }
                Err(Trouble::Unknown(why)) if !repeats => {
                    self.turn();
                    return Err(RegistryError::Unavailable(format!("etcd at {endpoint}: {why}")));
                }
                Err(Trouble::Barred(why)) => why,
                Err(Trouble::Unsent(why) | Trouble::Unknown(why) | Trouble::Token(why)) => {
                    all_bar = false;
                    why
                }
            };
            told.push(format!("{endpoint}: {why}"));
            self.turn();
            if Instant::now() >= until {
                break;
            }
        }
        if all_bar {
            return Err(RegistryError::Refused(format!("etcd at {}", told.join("; "))));
        }
        let why = format!(
            "etcd serves no request; start its members, or correct --registry ({})",
            told.join("; ")
        );
        Err(RegistryError::Unavailable(why))
    }

    /// Another member is asked first from now on.
    fn turn(&self) {
        self.first.set((self.first.get() + 1) % self.url.endpoints.len());
    }

    fn ask_member<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        path: &str,
        body: &Value,
    ) -> Result<T, Trouble> {
        let Some(user) = &self.url.user else {
            return self.post(endpoint, path, body);
        };
        let is_new = self.token.borrow().is_none();
        if is_new {
            self.log_in(endpoint, user)?;
        }
        match self.post(endpoint, path, body) {
            Err(Trouble::Token(_)) if !is_new => {
                self.log_in(endpoint, user)?;
                self.post(endpoint, path, body)
            }
            other => other,
        }
    }

    /// Gets a token. Whatever goes wrong, what is to be asked with the token is not asked.
    fn log_in(&self, endpoint: &str, user: &User) -> Result<(), Trouble> {
        #[derive(Deserialize)]
        struct Answer {
            token: String,
        }
        self.token.replace(None);
        let password = access::password(user).map_err(Trouble::Barred)?;
        let body = json!({ "name": user.name, "password": password });
        match self.post::<Answer>(endpoint, "/v3/auth/authenticate", &body) {
            Ok(answer) => {
                self.token.replace(Some(answer.token));
                Ok(())
            }
            Err(Trouble::Unknown(why) | Trouble::Token(why)) => Err(Trouble::Unsent(why)),
            Err(other) => Err(other),
        }
    }

    /// Why a member has hung up, if that can be found out.
    fn diagnose(&self, endpoint: &str, error: &ureq::Error) -> Option<(String, bool)> {
        let hung_up = [
            ErrorKind::BrokenPipe,
            ErrorKind::ConnectionReset,
            ErrorKind::UnexpectedEof,
        ];
        if !matches!(error, ureq::Error::Io(why) if hung_up.contains(&why.kind())) {
            return None;
        }
        let why = match &self.url.tls {
            None => format!("{error}; if it speaks TLS, write {TLS_SCHEME} in --registry"),
            Some(tls) => access::diagnose(tls, endpoint, LIMITS)?.0,
        };
        // It may have taken the request before somebody changed what it likes.
        Some((why, false))
    }

    fn post<T: DeserializeOwned>(&self, endpoint: &str, path: &str, body: &Value) -> Result<T, Trouble> {
        let scheme = if self.url.tls.is_some() { "https" } else { "http" };
        let mut request = self.agent()?.post(format!("{scheme}://{endpoint}{path}"));
        if let Some(token) = &*self.token.borrow() {
            request = request.header("Authorization", token);
        }
        let trouble = |error: ureq::Error| {
            let known = access::tls_trouble(&error).or_else(|| self.diagnose(endpoint, &error));
            if known.is_some() {
                self.agent.replace(None);
            }
            match known {
                Some((why, true)) => Trouble::Barred(why),
                Some((why, false)) => Trouble::Unknown(why),
                None => trouble(error),
            }
        };
        let answer = request
            // A member without a leader says so at once.
            .header("Grpc-Metadata-hasleader", "true")
            // It gives up when nobody waits any more.
            .header("Grpc-Timeout", format!("{}m", ANSWER_WITHIN.as_millis()))
            .send_json(body);
        let mut answer = answer.map_err(trouble)?;
        let status = answer.status();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = body.read_to_string().map_err(trouble)?;
        if status.is_success() {
            let parsed = serde_json::from_str(&text);
            return parsed
                .map_err(|error| Trouble::Unknown(format!("it does not answer as etcd does: {error}")));
        }
        match serde_json::from_str::<Problem>(&text) {
            Ok(problem) => Err(refusal(problem.error)),
            Err(_) if text.contains("HTTP request to an HTTPS server") => {
                let why = format!("it speaks TLS: write {TLS_SCHEME} in --registry");
                Err(Trouble::Barred(why))
            }
            Err(_) if text.contains("CommonName of client") => {
                let why = "where it has users, it takes no client whose certificate has a common name: give the client another one";
                Err(Trouble::Barred(why.to_owned()))
            }
            Err(_) => Err(Trouble::Unknown(format!(
                "it answers {status}: Switchyard needs etcd 3.4 or newer with --enable-grpc-gateway, its default"
            ))),
        }
    }
}

fn refusal(error: String) -> Trouble {
    if TOKENS.iter().any(|words| error.contains(words)) {
        return Trouble::Token(error);
    }
    let known = REFUSALS.iter().find(|(words, _)| error.contains(words));
    match known {
        Some((_, remedy)) => Trouble::Refused(format!("{error}: {remedy}")),
        None => Trouble::Unknown(error),
    }
}

fn trouble(error: ureq::Error) -> Trouble {
    let connects = matches!(
        error,
        ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve)
    );
    // Only an attempt to connect is refused like this.
    let is_refused = matches!(&error, ureq::Error::Io(why) if why.kind() == ErrorKind::ConnectionRefused);
    if connects || is_refused {
        return Trouble::Unsent(error.to_string());
    }
    Trouble::Unknown(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::url::SCHEME;
    use super::*;
    use serde_json::json;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    fn client(members: &[String]) -> Client {
        Client::new(&format!("{SCHEME}{}", members.join(",")).parse().unwrap())
    }

    /// Nobody listens there.
    fn closed() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    }

    /// A member that answers one request, or takes it and hangs up if it has no answer.
    fn member(answer: Option<(&'static str, &'static str)>) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            while !seen.ends_with(b"{}") {
                let mut bytes = [0; 1024];
                let count = stream.read(&mut bytes).unwrap();
                assert!(count > 0, "the request is whole");
                seen.extend_from_slice(&bytes[..count]);
            }
            if let Some((status, body)) = answer {
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
            }
        });
        (address, thread)
    }

    #[test]
    fn a_member_that_cannot_be_reached_is_passed_over_and_not_asked_first_again() {
        let (address, thread) = member(Some(("200 OK", r#"{"a":1}"#)));
        let client = client(&[closed(), address]);
        let answer: Value = client.write("/v3/kv/txn", &json!({})).unwrap();
        assert_eq!((answer, client.first.get()), (json!({"a": 1}), 1));
        thread.join().unwrap();
    }

    #[test]
    fn only_what_reads_is_asked_again_after_an_answer_that_never_came() {
        for reads in [false, true] {
            let (silent, first) = member(None);
            let (good, second) = member(Some(("200 OK", "{}")));
            let client = client(&[silent, good]);
            let answer: Result<Value, _> = client.ask("/v3/kv/range", &json!({}), reads);
            assert_eq!(answer.is_ok(), reads);
            assert_eq!(client.first.get(), 1, "the next request goes to the other member");
            let again: Result<Value, _> = client.read("/v3/kv/range", &json!({}));
            assert_eq!(again.is_ok(), !reads, "each member answers once");
            first.join().unwrap();
            second.join().unwrap();
        }
    }

    #[test]
    fn a_refusal_for_good_names_its_remedy_and_any_other_is_in_doubt() {
        let too_large = r#"{"error":"etcdserver: request is too large","code":3}"#;
        let timed_out = r#"{"error":"etcdserver: request timed out","code":14}"#;
        let ask = |status, body| {
            let (address, thread) = member(Some((status, body)));
            let answer: Result<Value, _> = client(&[address]).write("/v3/kv/txn", &json!({}));
            thread.join().unwrap();
            answer.unwrap_err()
        };
        let RegistryError::Refused(why) = ask("400 Bad Request", too_large) else {
            panic!("it is not in doubt");
        };
        assert!(why.contains("--max-request-bytes"), "{why}");
        for (status, body) in [
            ("503 Service Unavailable", timed_out),
            ("404 Not Found", "Not Found"),
        ] {
            assert!(
                matches!(ask(status, body), RegistryError::Unavailable(_)),
                "{status}"
            );
        }
    }
}
