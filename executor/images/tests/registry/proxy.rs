//! A proxy before a registry that counts requests and spoils some answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to answers, while there are any left to spoil.
#[derive(Debug, Clone)]
pub enum Fault {
    None,
    /// So many requests are answered with this status and `Retry-After`.
    Status {
        times: u32,
        status: &'static str,
        retry_after: &'static str,
    },
    /// So many blobs end after so many bytes.
    Cut {
        times: u32,
        bytes: usize,
    },
    /// One byte of each blob is another.
    Flip,
    /// Ranges are not known; so many blobs are cut.
    NoRanges {
        times: u32,
        bytes: usize,
    },
    /// Each part of a blob waits.
    Slow(Duration),
    /// Nobody gets in without the token of this name and password (base64).
    Guarded(&'static str),
    /// Leads elsewhere.
    Redirect(&'static str),
}

#[derive(Debug, Default)]
pub struct State {
    fault: Option<Fault>,
    /// `METHOD path` and its range.
    pub seen: Vec<String>,
}

#[derive(Clone)]
pub struct Proxy {
    pub port: u16,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    pub async fn start(upstream: u16, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy =
            Self { port, state: Arc::new(Mutex::new(State { fault: Some(fault), seen: Vec::new() })) };
        let serving = proxy.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let proxy = serving.clone();
                tokio::spawn(async move { proxy.serve(stream, upstream).await });
            }
        });
        proxy
    }

    pub fn seen(&self) -> Vec<String> {
        self.state.lock().unwrap().seen.clone()
    }

    pub fn set(&self, fault: Fault) {
        self.state.lock().unwrap().fault = Some(fault);
    }

    /// The fault of this request; a counted one counts down.
    fn take(&self, is_blob: bool) -> Fault {
        let mut state = self.state.lock().unwrap();
        let fault = state.fault.clone().unwrap_or(Fault::None);
        match state.fault.as_mut() {
            Some(Fault::Status { times, .. }) => {
                if *times == 0 {
                    return Fault::None;
                }
                *times -= 1;
            }
            Some(Fault::Cut { times, .. } | Fault::NoRanges { times, .. }) if is_blob => {
                *times = times.saturating_sub(1);
            }
            _ => {}
        }
        fault
    }

    async fn serve(&self, mut stream: TcpStream, upstream: u16) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(byte);
        }
        let head = String::from_utf8(head).unwrap();
        let line: Vec<&str> = head.lines().next().unwrap().split(' ').collect();
        let header = |name: &str| {
            let wanted = format!("{name}:");
            head.lines()
                .find(|line| line.to_ascii_lowercase().starts_with(&wanted))
                .map(|line| line[wanted.len()..].trim().to_owned())
        };
        let range = header("range").unwrap_or_default();
        self.state.lock().unwrap().seen.push(format!("{} {} {range}", line[0], line[1]).trim().to_owned());
        let is_blob = line[0] == "GET" && line[1].contains("/blobs/");
        let fault = self.take(is_blob);
        match &fault {
            Fault::Status { status, retry_after, .. } => {
                let body = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}"#;
                let answer = format!(
                    "HTTP/1.1 {status}\r\nretry-after: {retry_after}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
                return;
            }
            Fault::Redirect(to) => {
                let answer = format!(
                    "HTTP/1.1 307 Temporary Redirect\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
                return;
            }
            Fault::Guarded(login) => {
                let authorization = header("authorization").unwrap_or_default();
                if line[1].starts_with("/token") {
                    assert!(
                        line[1].contains("scope=repository%3Aa%2Fb%3Apull") && line[1].contains("service=s"),
                        "{head}"
                    );
                    let (status, body) = if authorization == format!("Basic {login}") {
                        ("200 OK", r#"{"token":"let-me-in","expires_in":60}"#)
                    } else {
                        ("401 Unauthorized", r#"{"errors":[{"code":"DENIED","message":"who are you"}]}"#)
                    };
                    let answer = format!(
                        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                        body.len()
                    );
                    let _ = stream.write_all(answer.as_bytes()).await;
                    return;
                }
                if authorization != "Bearer let-me-in" {
                    let port = self.port;
                    let answer = format!(
                        "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"s\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    );
                    let _ = stream.write_all(answer.as_bytes()).await;
                    return;
                }
            }
            _ => {}
        }
        let ignores_ranges = matches!(fault, Fault::NoRanges { .. });
        let is_dropped = |line: &&str| {
            let lower = line.to_ascii_lowercase();
            !(lower.starts_with("connection:")
                || lower.starts_with("authorization:")
                || ignores_ranges && lower.starts_with("range:"))
        };
        let mut request: String = head
            .lines()
            .filter(|line| !line.is_empty())
            .filter(is_dropped)
            .map(|line| format!("{line}\r\n"))
            .collect();
        request += "connection: close\r\n\r\n";
        let mut behind = TcpStream::connect(("127.0.0.1", upstream)).await.unwrap();
        behind.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        behind.read_to_end(&mut answer).await.unwrap();
        let body = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
        if is_blob {
            match fault {
                Fault::Cut { times, bytes } | Fault::NoRanges { times, bytes } if times > 0 => {
                    answer.truncate(body + bytes);
                }
                Fault::Flip => {
                    if let Some(last) = answer.last_mut() {
                        *last ^= 1;
                    }
                }
                Fault::Slow(pause) => {
                    for part in answer.chunks(8 << 10) {
                        if stream.write_all(part).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(pause).await;
                    }
                    return;
                }
                _ => {}
            }
        }
        let _ = stream.write_all(&answer).await;
    }
}
