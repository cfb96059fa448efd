//! The server's process group: its members get signals, until none may be sent any more.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, test_kill_process_group, waitid, waitpgid,
};

/// A process group whose leader is a child of ours.
///
/// Its number can be given to a strange process only when the leader was reaped and no member is left. The first look
/// that finds it empty is remembered, and nothing is signalled after it.
#[derive(Debug)]
pub(crate) struct Group {
    id: Pid,
    gone: AtomicBool,
}

impl Group {
    pub(crate) fn new(leader: Pid) -> Self {
        Self { id: leader, gone: AtomicBool::new(false) }
    }

    pub(crate) fn leader(&self) -> Pid {
        self.id
    }

    /// Whether a look found it empty.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Signals every member; nothing once the group is gone.
    pub(crate) fn signal(&self, signal: Signal) {
        if !self.is_gone() {
            self.note(kill_process_group(self.id, signal));
        }
    }

    /// Looks whether a member is left. Only meaningful after the leader was reaped; a zombie counts as a member.
    pub(crate) fn look(&self) -> bool {
        if !self.is_gone() {
            self.reap_adopted(WaitOptions::NOHANG);
            self.note(test_kill_process_group(self.id));
        }
        self.is_gone()
    }

    /// Blocks until the leader has ended, and leaves it to its owner to reap it.
    pub(crate) fn wait_for_leader(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        // Another error says that it was reaped elsewhere.
        while matches!(waitid(WaitId::Pid(self.id), options), Err(Errno::INTR)) {}
    }

    /// Reaps members that were given to this process when their parents died: it is their init or subreaper, as the
    /// first process of a container is. Must not be called before the leader was reaped by its owner.
    pub(crate) fn reap_adopted(&self, options: WaitOptions) {
        loop {
            match waitpgid(self.id, options) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn note(&self, result: rustix::io::Result<()>) {
        if result == Err(Errno::SRCH) {
            self.gone.store(true, Ordering::SeqCst);
        }
    }
}
