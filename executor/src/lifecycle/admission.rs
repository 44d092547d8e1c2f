//! Whether the node takes an order: the last word on capacity, from what is charged and what was
//! measured.

use rollout::Bytes;
use rollout::quantity::Request;
use rollout_wire::HELD_ATTEMPTS_MAX;

use super::{Refusal, RefusalClass};
use crate::capacity::{Capacity, Measured};
use crate::config::Reserves;

/// What an order is measured against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub capacity: Capacity,
    pub reserves: Reserves,
    pub measured: Measured,
    /// Without the sandbox the order goes on in.
    pub charged: Request,
    pub sandboxes: u32,
    /// Without the one whose kept sandbox the order goes on in.
    pub attempts: usize,
}

impl Room {
    /// `has_sandbox`: it goes on in one that exists, so only a larger charge can be in the way.
    pub fn check(&self, charge: Request, disk_limit: Bytes, has_sandbox: bool) -> Result<(), Refusal> {
        self.check_ever(charge, disk_limit)?;
        let (used, total) = (self.charged, self.capacity.total);
        for (what, unit, asked, used, limit) in [
            ("cpu", "m", charge.cpu.0, used.cpu.0, total.cpu.0),
            ("memory", " bytes", charge.memory.0, used.memory.0, total.memory.0),
            ("disk", " bytes", charge.disk.0, used.disk.0, total.disk.0),
        ] {
            if asked > limit.saturating_sub(used) {
                return busy(format!("{what}: {asked}{unit} asked, {used}{unit} of {limit}{unit} in use"));
            }
        }
        // Of every kind: at work, kept, and ended but not acknowledged. What is held has to fit a list.
        if self.attempts >= HELD_ATTEMPTS_MAX {
            return busy(format!("attempts held: {} of {HELD_ATTEMPTS_MAX}", self.attempts));
        }
        if has_sandbox {
            return Ok(());
        }
        if self.sandboxes >= self.capacity.sandboxes {
            let limit = self.capacity.sandboxes;
            return busy(format!("sandboxes: {} of {limit} in use", self.sandboxes));
        }
        for (what, available, reserve) in [
            ("memory", self.measured.memory_available, self.reserves.memory),
            ("disk", self.measured.disk_available, self.reserves.disk),
        ] {
            if available < reserve {
                let (available, reserve) = (available.about(), reserve.about());
                return busy(format!(
                    "{what} of the machine: {available} available, less than the reserve of {reserve}"
                ));
            }
        }
        Ok(())
    }

    fn check_ever(&self, charge: Request, disk_limit: Bytes) -> Result<(), Refusal> {
        let total = self.capacity.total;
        for (what, asked, limit) in [
            ("request.cpu (milli-cores)", charge.cpu.0, total.cpu.0),
            ("request.memory (bytes)", charge.memory.0, total.memory.0),
            ("request.disk (bytes)", charge.disk.0, total.disk.0),
            ("limit.disk (bytes)", disk_limit.0, self.capacity.disk_limit_max.0),
            ("sandboxes", 1, u64::from(self.capacity.sandboxes)),
        ] {
            if asked > limit {
                let message = format!("{what}: {asked} asked, this node has {limit} in all");
                return Err(Refusal { class: RefusalClass::NeverFits, message });
            }
        }
        Ok(())
    }
}

fn busy(message: String) -> Result<(), Refusal> {
    Err(Refusal { class: RefusalClass::Busy, message })
}
