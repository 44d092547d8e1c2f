//! Starting a process in a container: what init is asked, with which descriptors, and what comes of it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use sandbox_init::message::{self, BODY_MAX, ENTRIES_MAX, Stage, Streams};
use tokio::sync::watch;

use super::ContainerSandbox;
use crate::host::open;
use crate::sandbox::channel::{Answer, Channel, ChannelError};
use crate::sandbox::users::User;
use crate::sandbox::{Exit, Process, SpawnError};

/// What runs, as whom.
pub(super) struct Asked<'a> {
    pub argv: &'a [String],
    pub env: &'a BTreeMap<String, String>,
    pub cwd: &'a str,
    pub user: &'a str,
}

/// The descriptors of a process.
#[derive(Clone, Copy)]
pub(super) struct Descriptors {
    pub streams: Streams,
    pub has_report: bool,
    pub has_group: bool,
}

impl ContainerSandbox {
    /// Starts a process under a number of the channel. Its `streams` become the user's; `more` are the other descriptors of its kind,
    /// in order. Gives the process, with its number in the sandbox and the other end of its terminal.
    pub(super) async fn started(
        &self,
        ticket: u32,
        asked: &Asked<'_>,
        kind: Descriptors,
        streams: &[OwnedFd],
        more: &[&OwnedFd],
    ) -> Result<(ContainerProcess, (i32, Option<OwnedFd>)), SpawnError> {
        let program = asked.argv.first().cloned().unwrap_or_default();
        let setup = |action: &str, source: io::Error| SpawnError::Setup { action: action.to_owned(), source };
        let user = self
            .image
            .users
            .find(asked.user)
            .ok_or_else(|| SpawnError::UnknownUser { user: asked.user.to_owned() })?;
        let request =
            spawn_request(asked, kind, user).map_err(|source| setup("reading the request", source))?;
        for stream in streams {
            give(stream.as_fd(), self.id_base + user.uid, self.id_base + user.gid)
                .map_err(|source| setup("handing over its streams", source))?;
        }
        let given: Vec<_> = streams.iter().chain(more.iter().copied()).map(AsRawFd::as_raw_fd).collect();
        let channel = &self.alive().channel;
        let (answer, exited) = channel.spawn(ticket, request, &given).await.map_err(|error| match error {
            ChannelError::Dead(reason) => SpawnError::Dead { reason },
            ChannelError::Io(source) => setup("asking init", source),
        })?;
        match answer {
            Answer::Started(pid, terminal) => {
                let channel = Arc::clone(channel);
                Ok((ContainerProcess { channel, ticket, exited }, (pid, terminal)))
            }
            Answer::NotStarted(Stage::Exec, errno) => {
                Err(SpawnError::Exec { program, source: io::Error::from_raw_os_error(errno) })
            }
            Answer::NotStarted(Stage::Cwd, errno) if is_of_the_tree(errno) => {
                let source = io::Error::from_raw_os_error(errno);
                Err(SpawnError::Workdir { workdir: asked.cwd.to_owned(), source })
            }
            Answer::NotStarted(stage, errno) => {
                Err(setup(stage.as_str(), io::Error::from_raw_os_error(errno)))
            }
            Answer::Signalled(_) | Answer::KilledAll | Answer::Replayed(_) => {
                Err(setup("asking init", io::Error::other("it answered another question")))
            }
        }
    }
}

/// Whether the kernel's answer for a path follows from the tree it was looked up in, and would be
/// the same on another machine.
pub(in crate::sandbox) fn is_of_the_tree(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES | libc::EPERM | libc::ENAMETOOLONG
    )
}

/// Makes a pipe the user's, who may then open it again as /dev/stdout. Anything else (a device of
/// the host) keeps its owner.
fn give(output: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    if open::stat(output)?.st_mode & libc::S_IFMT != libc::S_IFIFO {
        return Ok(());
    }
    open::change_owner(output, uid, gid)
}

fn spawn_request(spawn: &Asked<'_>, kind: Descriptors, user: User) -> Result<message::Spawn, io::Error> {
    let refuse = |problem: &str| io::Error::new(io::ErrorKind::InvalidInput, problem.to_owned());
    let Descriptors { streams, has_report, has_group } = kind;
    if spawn.argv.first().is_none_or(String::is_empty) {
        return Err(refuse("argv is empty"));
    }
    if spawn.argv.len() > ENTRIES_MAX || spawn.env.len() > ENTRIES_MAX {
        return Err(refuse(&format!("more than {ENTRIES_MAX} arguments or variables")));
    }
    if spawn.env.keys().any(|name| name.is_empty() || name.contains('=')) {
        return Err(refuse("a variable's name is empty or holds `=`"));
    }
    let env: Vec<_> = spawn.env.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect();
    let request = message::Spawn {
        argv: spawn.argv.iter().map(|argument| argument.clone().into_bytes()).collect(),
        env,
        cwd: spawn.cwd.as_bytes().to_vec(),
        uid: user.uid,
        gid: user.gid,
        streams,
        has_report,
        has_group,
    };
    let all = request.argv.iter().chain(&request.env).chain([&request.cwd]);
    if all.clone().any(|bytes| bytes.contains(&0)) {
        return Err(refuse("an argument, variable or the directory holds a NUL byte"));
    }
    if all.map(|bytes| bytes.len() + 4).sum::<usize>() > BODY_MAX - 64 {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    Ok(request)
}

#[derive(Debug)]
pub(super) struct ContainerProcess {
    pub(super) channel: Arc<Channel>,
    pub(super) ticket: u32,
    pub(super) exited: watch::Receiver<Option<Exit>>,
}

#[tonic::async_trait]
impl Process for ContainerProcess {
    async fn wait(&self) -> Result<Exit, SpawnError> {
        let mut exited = self.exited.clone();
        let exit = exited.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
        match exit {
            Some(exit) => Ok(exit),
            None => Err(SpawnError::Dead { reason: self.channel.died().await }),
        }
    }

    async fn signal(&self, signal: i32) -> Result<(), io::Error> {
        match self.channel.signal(self.ticket, signal).await {
            Ok(Answer::Signalled(0)) => Ok(()),
            Ok(Answer::Signalled(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Ok(_) => Err(io::Error::other("init answered another question")),
            Err(ChannelError::Dead(reason)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, reason)),
            Err(ChannelError::Io(error)) => Err(error),
        }
    }
}
