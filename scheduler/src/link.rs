//! Executors: who is connected, and the service they attach to.
//!
//! A node has one connection; a second one of the same incarnation replaces the first. Heartbeats
//! are kept as the latest value per node and acknowledged by a task of their own: no amount of
//! work can starve them.

mod close;
mod hello;
mod reader;
mod service;
mod session;
mod start;
mod waiting;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout::{IncarnationId, NodeId};
use rollout_wire::v1;
use scheduler_core::event::{Capacity, Measured};
use scheduler_core::{Command, Event};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

use close::Close;
pub use close::CloseCode;
pub use service::NodesService;
pub(crate) use service::Welcome;
pub(crate) use start::Starts;
use waiting::WaitingBytes;

use crate::inbox::SessionId;

/// Commands that may wait for one node; past it the node is disconnected as too slow.
pub const NODE_COMMANDS_MAX: usize = 2 * rollout_wire::HELD_ATTEMPTS_MAX;
/// Executors connected at once.
pub const NODES_MAX: usize = 4_096;
/// Log reads that may wait for one node.
pub const LOG_READS_MAX: usize = 64;

/// What goes to a node, before it is resolved.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Core(Command),
    ReadLog(v1::ReadLog),
}

/// A session as it was entered.
#[derive(Debug)]
struct Registered {
    session: SessionId,
    /// Set when it has to end.
    closed: watch::Receiver<Option<Close>>,
    /// What its node may still have waiting.
    report_bytes: Arc<Semaphore>,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    incarnation: IncarnationId,
    /// The driver has applied its attach: commands may go there.
    active: bool,
    capacity: Capacity,
    about: About,
    outgoing: mpsc::Sender<Outgoing>,
    close: watch::Sender<Option<Close>>,
    /// The latest heartbeat, until the driver takes it.
    beat: Option<Measured>,
    measured: Measured,
    log_reads: BTreeMap<u64, LogRead>,
}

#[derive(Debug)]
struct LogRead {
    bytes_max: u32,
    reply: oneshot::Sender<v1::LogData>,
}

/// A connected node, for `ListNodes`.
#[derive(Debug, Clone)]
pub struct ConnectedNode {
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub capacity: Capacity,
    pub measured: Measured,
    pub about: About,
}

/// What an executor said of itself, for people and rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    pub version: String,
    pub backends: Vec<String>,
    /// Where it serves calls of sandboxes; empty: nowhere.
    pub sandboxes_url: String,
}

/// The connected nodes.
#[derive(Debug, Default)]
pub struct Links {
    inner: Mutex<Inner>,
    /// A heartbeat waits for the driver.
    pub(crate) beats: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: BTreeMap<NodeId, Session>,
    waiting: WaitingBytes,
    next_session: u64,
    next_log_read: u64,
}

/// A log read that could not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadLogRefused {
    /// The node is not connected.
    Away,
    /// Too many readers of its logs.
    Busy,
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session; one of the same incarnation that it replaces is closed. Another executor of
    /// that name is refused while the first is connected: two would take the node from each other,
    /// and every attempt with it, without end.
    fn register(
        &self,
        node: &NodeId,
        incarnation: IncarnationId,
        capacity: Capacity,
        about: About,
        outgoing: mpsc::Sender<Outgoing>,
    ) -> Result<Registered, Close> {
        let mut inner = self.lock();
        if inner.sessions.get(node).is_some_and(|held| held.incarnation != incarnation) {
            let message = format!(
                "another executor is connected as node {node}; give this one another --name, or wait until that one ends"
            );
            return Err(Close::new(CloseCode::NodeNameTaken, message));
        }
        if inner.sessions.len() >= NODES_MAX && !inner.sessions.contains_key(node) {
            let message = format!("{NODES_MAX} executors are connected, the most at once");
            return Err(Close::new(CloseCode::TooManyNodes, message));
        }
        inner.next_session += 1;
        let id = SessionId(inner.next_session);
        let (close, closed) = watch::channel(None);
        let session = Session {
            id,
            incarnation,
            active: false,
            capacity,
            about,
            outgoing,
            close,
            beat: None,
            measured: Measured::default(),
            log_reads: BTreeMap::new(),
        };
        if let Some(old) = inner.sessions.insert(node.clone(), session) {
            let message = format!("a newer connection of node {node} took over");
            old.close.send_replace(Some(Close::new(CloseCode::Replaced, message)));
        }
        let report_bytes = inner.waiting.of(node);
        Ok(Registered { session: id, closed, report_bytes })
    }

    fn unregister(&self, node: &NodeId, id: SessionId) {
        let mut inner = self.lock();
        if inner.sessions.get(node).is_some_and(|session| session.id == id) {
            inner.sessions.remove(node);
        }
    }

    /// From here on the driver's commands reach this session.
    pub(crate) fn activate(&self, node: &NodeId, id: SessionId) {
        if let Some(session) = self.lock().sessions.get_mut(node).filter(|session| session.id == id) {
            session.active = true;
        }
    }

    /// Whether the incarnation has a connection, whichever.
    pub(crate) fn connected(&self, node: &NodeId, incarnation: IncarnationId) -> bool {
        self.lock().sessions.get(node).is_some_and(|session| session.incarnation == incarnation)
    }

    /// The incarnations whose attach was applied.
    pub(crate) fn active(&self) -> Vec<(NodeId, IncarnationId)> {
        let inner = self.lock();
        let active = inner.sessions.iter().filter(|(_, session)| session.active);
        active.map(|(node, session)| (node.clone(), session.incarnation)).collect()
    }

    pub(crate) fn versions(&self) -> BTreeMap<NodeId, String> {
        let inner = self.lock();
        inner.sessions.iter().map(|(node, session)| (node.clone(), session.about.version.clone())).collect()
    }

    /// Where a connected node serves calls of sandboxes; empty: nowhere.
    pub(crate) fn sandboxes_url(&self, node: &NodeId) -> Option<String> {
        self.lock().sessions.get(node).map(|session| session.about.sandboxes_url.clone())
    }

    pub fn list(&self) -> Vec<ConnectedNode> {
        let inner = self.lock();
        let node = |(node, session): (&NodeId, &Session)| ConnectedNode {
            node: node.clone(),
            incarnation: session.incarnation,
            capacity: session.capacity.clone(),
            measured: session.measured,
            about: session.about.clone(),
        };
        inner.sessions.iter().map(node).collect()
    }

    fn beat(&self, node: &NodeId, id: SessionId, measured: Measured) {
        if let Some(session) = self.lock().sessions.get_mut(node).filter(|session| session.id == id) {
            session.beat = Some(measured);
            session.measured = measured;
        }
        self.beats.notify_one();
    }

    /// The heartbeats since the last call, one per node. Those of a session whose attach was not
    /// applied yet are among them: they were acknowledged, and its node may be known.
    pub(crate) fn take_beats(&self) -> Vec<Event> {
        let mut inner = self.lock();
        let sessions = inner.sessions.iter_mut();
        let event = |(node, session): (&NodeId, &mut Session)| {
            let measured = session.beat.take()?;
            Some(Event::Heartbeat { node: node.clone(), incarnation: session.incarnation, measured })
        };
        sessions.filter_map(event).collect()
    }

    /// Hands a command to its node. A node that is away is not an error: what it must hold is
    /// sent again when it attaches.
    pub(crate) fn send(&self, node: &NodeId, incarnation: IncarnationId, command: Command) {
        let mut inner = self.lock();
        let Some(session) = inner.sessions.get_mut(node) else { return };
        if session.incarnation != incarnation || !session.active {
            return;
        }
        if session.outgoing.try_send(Outgoing::Core(command)).is_err() {
            let message = format!("{NODE_COMMANDS_MAX} commands wait for node {node}");
            session.close.send_replace(Some(Close::new(CloseCode::NodeTooSlow, message)));
        }
    }

    pub(crate) fn close(&self, node: &NodeId, incarnation: IncarnationId, reason: String) {
        if let Some(session) = self.lock().sessions.get(node)
            && session.incarnation == incarnation
        {
            session.close.send_replace(Some(Close::new(CloseCode::LeaseLost, reason)));
        }
    }

    /// Asks a node for a piece of a live log.
    pub(crate) fn read_log(
        &self,
        node: &NodeId,
        incarnation: IncarnationId,
        mut read: v1::ReadLog,
    ) -> Result<oneshot::Receiver<v1::LogData>, ReadLogRefused> {
        let mut inner = self.lock();
        inner.next_log_read += 1;
        let request = inner.next_log_read;
        let session = inner.sessions.get_mut(node).ok_or(ReadLogRefused::Away)?;
        if session.incarnation != incarnation {
            return Err(ReadLogRefused::Away);
        }
        // Readers that gave up leave a closed sender.
        session.log_reads.retain(|_, waiting| !waiting.reply.is_closed());
        if session.log_reads.len() >= LOG_READS_MAX {
            return Err(ReadLogRefused::Busy);
        }
        read.request = request;
        let bytes_max = read.bytes_max;
        session.outgoing.try_send(Outgoing::ReadLog(read)).map_err(|_| ReadLogRefused::Busy)?;
        let (reply, answer) = oneshot::channel();
        session.log_reads.insert(request, LogRead { bytes_max, reply });
        Ok(answer)
    }

    /// Hands a piece of a log to whoever asked for it; nobody may have.
    fn log_data(&self, node: &NodeId, id: SessionId, data: v1::LogData) -> Result<(), Close> {
        let mut inner = self.lock();
        let session = inner.sessions.get_mut(node).filter(|session| session.id == id);
        if let Some(read) = session.and_then(|session| session.log_reads.remove(&data.request)) {
            if data.data.len() > read.bytes_max as usize {
                let message =
                    format!("{} bytes of a log, {} were asked for", data.data.len(), read.bytes_max);
                return Err(Close::new(CloseCode::BadReport, message));
            }
            // The reader may be gone.
            let _ = read.reply.send(data);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rollout::quantity::Request;
    use rollout::{Bytes, JobId};

    use super::*;

    fn capacity() -> Capacity {
        Capacity {
            total: Request::default(),
            sandboxes: 1,
            disk_limit_max: Bytes(0),
            backends: std::collections::BTreeSet::new(),
        }
    }

    #[test]
    fn a_second_connection_of_a_node_closes_the_first_and_its_end_changes_nothing() {
        let links = Links::default();
        let node = NodeId("n".parse().unwrap());
        let incarnation = IncarnationId::from_bits(1);
        let (sender, _receiver) = mpsc::channel(1);
        let first = links.register(&node, incarnation, capacity(), About::default(), sender.clone()).unwrap();
        let second = links.register(&node, incarnation, capacity(), About::default(), sender).unwrap();
        let closed = first.closed.borrow().clone();
        assert_eq!(closed.map(|close| close.code), Some(CloseCode::Replaced));
        links.unregister(&node, first.session);
        assert!(links.connected(&node, incarnation));
        links.unregister(&node, second.session);
        assert!(!links.connected(&node, incarnation));
    }

    #[test]
    fn a_node_that_does_not_take_its_commands_is_disconnected_by_name() {
        let links = Links::default();
        let node = NodeId("n".parse().unwrap());
        let incarnation = IncarnationId::from_bits(1);
        let (sender, _receiver) = mpsc::channel(1);
        let session = links.register(&node, incarnation, capacity(), About::default(), sender).unwrap();
        let command = || Command::Expand { job: JobId::from_bits(1), first: 0, count: 1 };
        links.send(&node, incarnation, command());
        links.activate(&node, session.session);
        links.send(&node, incarnation, command());
        assert!(session.closed.borrow().is_none());
        links.send(&node, incarnation, command());
        let closed = session.closed.borrow().clone();
        assert_eq!(closed.map(|close| close.code), Some(CloseCode::NodeTooSlow));
    }

    #[test]
    fn only_the_latest_heartbeat_of_a_node_reaches_the_driver() {
        let links = Links::default();
        let node = NodeId("n".parse().unwrap());
        let (sender, _receiver) = mpsc::channel(1);
        let incarnation = IncarnationId::from_bits(1);
        let session = links.register(&node, incarnation, capacity(), About::default(), sender).unwrap();
        let beat = |load_milli| Measured { load_milli, ..Measured::default() };
        links.beat(&node, session.session, beat(1));
        links.beat(&node, session.session, beat(2));
        let taken = links.take_beats();
        assert!(matches!(&taken[..], [Event::Heartbeat { measured, .. }] if measured.load_milli == 2));
        assert!(links.take_beats().is_empty());
    }

    #[test]
    fn a_second_executor_of_a_name_is_refused_until_the_first_is_gone() {
        let (links, node) = (Links::default(), NodeId("n1".parse().unwrap()));
        let (sender, _commands) = mpsc::channel(1);
        let life = IncarnationId::from_bits;
        let first = links.register(&node, life(1), capacity(), About::default(), sender.clone()).unwrap();
        let refused =
            links.register(&node, life(2), capacity(), About::default(), sender.clone()).unwrap_err();
        assert_eq!(refused.code, CloseCode::NodeNameTaken);
        assert!(first.closed.borrow().is_none(), "the first is left alone");
        links.unregister(&node, first.session);
        assert!(links.register(&node, life(2), capacity(), About::default(), sender).is_ok());
    }
}
