//! What each command does. A command asks, hands what it found to the renderer and says how it
//! ended; how things look is `output`'s.

mod artifact;
mod attach;
mod begun;
mod checkpoint;
mod copy;
mod exec;
mod export;
mod image;
mod jobs;
mod logs;
pub mod matrix;
mod patience;
mod reference;
mod run;
mod sandbox;
mod schedule;
mod services;
mod specs;
mod wait;
mod without_file;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rollout::Timestamp;

use crate::args::{Blobs, Cli, Command, Flags, OutputFormat};
use crate::client::{Client, YardUrl};
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::output::{self, Output};
use crate::talk::Talk;
use crate::yard::{self, Yard};

/// What every command gets.
#[derive(Debug)]
pub struct Context {
    pub data_dir: PathBuf,
    /// As given; none: the socket in the data directory.
    pub yard: Option<YardUrl>,
    pub format: OutputFormat,
    pub output: Box<dyn Output>,
    pub talk: Talk,
}

impl Context {
    pub fn new(cli: &Cli, flags: Flags, talk: Talk) -> Result<Self, Error> {
        let data_dir = match &cli.global.data_dir {
            Some(dir) => absolute(dir)?,
            None => default_data_dir(),
        };
        if data_dir.to_str().is_none() {
            let problem = "it is not UTF-8, and the database takes no other path".to_owned();
            return Err(Error::BadDataDir { data_dir, problem });
        }
        let yard = cli.global.yard.as_deref().map(YardUrl::parse).transpose()?;
        let format = cli.global.output;
        // As the command line named the yard, so that printed commands can be pasted. What the
        // environment names is there again then.
        let program = match (&cli.global.data_dir, &yard) {
            (_, Some(url)) if flags.yard => format!("rollyard --yard {}", pasteable(&url.to_string())),
            (Some(dir), None) if flags.data_dir => {
                format!("rollyard --data-dir {}", pasteable(&dir.display().to_string()))
            }
            _ => "rollyard".to_owned(),
        };
        Ok(Self { data_dir, yard, format, output: output::renderer(format, now(), program), talk })
    }

    pub fn url(&self) -> Result<YardUrl, Error> {
        match &self.yard {
            Some(url) => Ok(url.clone()),
            None => yard::socket_url(&self.data_dir),
        }
    }

    /// Asks the yard. Where none serves the data directory, what is stored there is opened for
    /// reading: what `run` left can be looked at after it ended, and a look changes nothing. People
    /// are told so where `may_move` says that a running yard could change the answer.
    pub async fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&Client) -> Result<T, Error>,
        may_move: impl FnOnce(&T) -> bool,
    ) -> Result<T, Error> {
        let unreachable = match Client::connect(self.url()?).await {
            Ok(client) => return question(&client).await,
            Err(error) => error,
        };
        if self.yard.is_some() || !yard::has_state(&self.data_dir) {
            return Err(unreachable);
        }
        let reader = yard::read(&self.data_dir).await?;
        let client = Client::over(reader.channel(), self.url()?, false);
        let answer = question(&client).await;
        if self.format == OutputFormat::Table && answer.as_ref().is_ok_and(may_move) {
            self.talk.say(
                "no yard runs on this data directory: this is what it left, and nothing moves until the same \
                 `rollyard run`, or `rollyard dev`, goes on with it",
            );
        }
        drop(client);
        let closed = yard::closed(reader).await;
        answer.and_then(|answer| closed.map(|()| answer))
    }

    /// Tells the yard to change something. Where none serves the data directory, a scheduler does
    /// for as long as that takes.
    pub async fn tell<T>(&self, change: impl AsyncFnOnce(&Client) -> Result<T, Error>) -> Result<T, Error> {
        let unreachable = match Client::connect(self.url()?).await {
            Ok(client) => return change(&client).await,
            Err(error) => error,
        };
        if self.yard.is_some() || !yard::has_state(&self.data_dir) {
            return Err(unreachable);
        }
        let yard = Yard::scheduler(&self.data_dir, &[], &Blobs::default()).await?;
        let answer = match Client::connect(self.url()?).await {
            Ok(client) => change(&client).await,
            Err(error) => Err(error),
        };
        let stopped = yard.stop().await;
        answer.and_then(|answer| stopped.map(|()| answer))
    }

    /// Data, on standard output.
    pub fn print(text: &str) -> Result<(), Error> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::Stdout)
    }
}

/// Runs one command.
pub async fn dispatch(cli: Cli, context: &Context) -> Result<ExitStatus, Error> {
    match cli.command {
        Command::Run(args) => run::run(context, &args).await,
        Command::Dev(args) => services::dev(context, &args).await,
        Command::Scheduler(args) => services::scheduler(context, &args).await,
        Command::Executor(args) => services::executor(context, &args).await,
        Command::Submit(args) => specs::submit(context, &args).await,
        Command::Check(args) => specs::check(context, &args),
        Command::Ps(args) => jobs::ps(context, &args).await,
        Command::Show(args) => jobs::show(context, &args).await,
        Command::Explain(args) => jobs::explain(context, &args).await,
        Command::Logs(args) => logs::logs(context, &args).await,
        Command::Artifact(args) => artifact::artifact(context, &args).await,
        Command::Cancel(args) => jobs::cancel(context, &args).await,
        Command::Sandbox { command } => sandbox::sandbox(context, &command).await,
        Command::Exec(args) => exec::exec(context, args).await,
        Command::Attach(args) => attach::attach(context, &args).await,
        Command::Cp(args) => copy::copy(context, &args).await,
        Command::Fork(args) => sandbox::fork(context, &args).await,
        Command::Pause(args) => sandbox::pause(context, &args).await,
        Command::Resume(args) => sandbox::resume(context, &args).await,
        Command::Kill(args) => sandbox::kill(context, &args).await,
        Command::Checkpoint { command } => checkpoint::checkpoint(context, &command).await,
        Command::Gc(args) => checkpoint::gc(context, &args).await,
        Command::Retry(args) => jobs::retry(context, &args).await,
        Command::Export(args) => export::export(context, &args).await,
        Command::Schedule(command) => schedule::schedule(context, &command).await,
        Command::Image(args) => image::image(context, &args).await,
        Command::Nodes => jobs::nodes(context).await,
        Command::Doctor => services::doctor(context),
        Command::Reference => reference::reference(),
    }
}

pub fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

pub fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| Error::ReadFile { path: path.to_owned(), source })
}

/// A word for a shell.
fn pasteable(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+:@%,=".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn default_data_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let data = || std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let of_user = || data().or_else(|| Some(home()?.join(".local/share"))).map(|dir| dir.join("rollyard"));
    let root = nix::unistd::geteuid().is_root();
    if root { None } else { of_user() }.unwrap_or_else(|| PathBuf::from("/var/lib/rollyard"))
}
