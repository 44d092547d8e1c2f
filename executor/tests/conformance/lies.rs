//! Ways to break one rule each.

use crate::subject::{CONTAINER, FNCALL, Subject};

/// What a [`Liar`](crate::liar::Liar) does other than the backend it wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breach {
    AgreesToAnyDigest,
    AgreesToAnyDisk,
    AgreesToAnyImage,
    AgreesToAnyUser,
    ConnectsToTheHost,
    CountsNothing,
    CutsArguments,
    DestroysNothing,
    DiesAtOnce,
    DropsInput,
    DropsLayers,
    ExitsWell,
    ForgetsWhatIsDropped,
    FreezesNothing,
    FollowsLinks,
    GoesOnAlone,
    KillsNobody,
    KillsOneOfATree,
    KeepsLimits,
    LaysNothing,
    LeavesADescriptor,
    ListsAll,
    NeverDies,
    OwnsAsRoot,
    PacksInItsOwnTime,
    RefusesLayers,
    RenamesSandboxes,
    ResetsNothing,
    RunsAsRoot,
    RunsInAShell,
    RunsOnTheHost,
    ShowsIdsOfTheHost,
    SignalsNobody,
    UnboundedCpu,
    UnboundedDisk,
    UnboundedMemory,
    UnboundedTasks,
}

/// A breach, and how it is noticed.
pub struct Lie {
    pub name: &'static str,
    pub over: &'static Subject,
    pub breach: Breach,
    /// The rule that notices.
    pub breaks: &'static str,
    /// A part of what it says then.
    pub says: &'static str,
}

macro_rules! lies {
    ($($over:ident: $breach:ident breaks $breaks:ident saying $says:literal;)*) => {
        pub const LIES: &[Lie] = &[$(Lie {
            name: stringify!($breach),
            over: &$over,
            breach: Breach::$breach,
            breaks: stringify!($breaks),
            says: $says,
        }),*];
    };
}

lies! {
    CONTAINER: DestroysNothing breaks a_destroyed_sandbox_leaves_nothing saying "left by a destroyed";
    CONTAINER: ForgetsWhatIsDropped breaks a_dropped_sandbox_leaves_nothing saying "left by a dropped sandbox";
    CONTAINER: GoesOnAlone breaks a_dropped_creation_leaves_nothing saying "left by a dropped creation";
    CONTAINER: NeverDies breaks a_dead_sandbox_says_so_and_can_be_destroyed saying "its death is not told";
    CONTAINER: DiesAtOnce breaks a_dead_sandbox_says_so_and_can_be_destroyed saying "it is alive";
    CONTAINER: AgreesToAnyUser breaks a_bad_spec_is_refused_by_name saying "a bad spec was taken";
    CONTAINER: RenamesSandboxes breaks a_bad_spec_is_refused_by_name saying "a bad spec was taken";
    CONTAINER: AgreesToAnyImage breaks an_image_that_is_not_there_is_refused saying "image dir:";
    CONTAINER: RenamesSandboxes breaks an_id_is_one_sandbox_at_a_time saying "an id in use";
    CONTAINER: AgreesToAnyDigest breaks an_image_has_one_digest saying "an image of another digest";
    CONTAINER: ExitsWell breaks a_process_ends_as_the_kernel_says saying "the exit of `exit 77`";
    CONTAINER: RunsInAShell breaks a_program_that_cannot_run_is_told_by_its_errno saying "is no error of exec";
    CONTAINER: RunsAsRoot breaks a_process_has_the_user_directory_and_environment_it_was_given
        saying "user, directory and mask";
    CONTAINER: LeavesADescriptor breaks a_process_has_three_descriptors saying "descriptors of rollout";
    CONTAINER: CutsArguments breaks arguments_arrive_whole saying "lengths of what arrived";
    CONTAINER: SignalsNobody breaks a_signal_reaches_the_whole_group saying "a signal was sent";
    CONTAINER: KillsNobody breaks kill_all_ends_daemons_and_leaves_a_working_sandbox
        saying "processes after all were killed";
    CONTAINER: UnboundedMemory breaks the_memory_limit_kills_inside_and_is_counted saying "more than the limit";
    CONTAINER: CountsNothing breaks the_memory_limit_kills_inside_and_is_counted saying "kills are counted";
    CONTAINER: UnboundedTasks breaks the_pids_limit_refuses_forks_and_is_counted
        saying "more processes than the limit";
    CONTAINER: UnboundedDisk breaks a_full_disk_is_no_space_and_no_oom saying "a disk of";
    CONTAINER: UnboundedCpu breaks the_cpu_limit_holds saying "at 20m";
    CONTAINER: KeepsLimits breaks limits_can_be_rewritten saying "the new limit of processes";
    CONTAINER: AgreesToAnyDisk breaks a_limit_that_cannot_hold_is_refused_by_name
        saying "limit.disk was not refused";
    CONTAINER: OwnsAsRoot breaks files_have_the_owner_and_mode_they_were_given saying "modes and owners";
    CONTAINER: FollowsLinks breaks no_link_and_no_pipe_is_followed saying "was opened";
    CONTAINER: ResetsNothing breaks a_directory_is_reset_over_what_was_left saying "after `";
    CONTAINER: ListsAll breaks a_listing_has_a_bound saying "more names than the bound";
    CONTAINER: RunsOnTheHost breaks no_network_is_reached saying "a port of the host";
    CONTAINER: RunsOnTheHost breaks nothing_of_the_host_is_seen saying "of the host";
    CONTAINER: RunsOnTheHost breaks root_of_a_sandbox_is_not_root_of_the_host saying "a range of ids of its own";
    CONTAINER: RunsOnTheHost breaks files_of_one_sandbox_are_not_those_of_another saying "is shared";
    CONTAINER: DropsLayers breaks what_was_packed_comes_back saying "left == right";
    CONTAINER: PacksInItsOwnTime breaks packing_stops_what_runs_for_a_bounded_time saying "packed in no time";
    CONTAINER: LaysNothing breaks a_layer_is_laid_over_a_live_sandbox saying "what was laid over it";
    CONTAINER: DropsInput breaks a_process_reads_what_it_is_sent saying "came back";
    CONTAINER: KillsOneOfATree breaks a_killed_tree_is_gone_whole saying "processes of a killed tree";
    CONTAINER: FreezesNothing breaks what_is_frozen_stands_still_and_goes_on saying "it runs on while it is frozen";
    CONTAINER: ConnectsToTheHost breaks a_port_of_the_sandbox_is_its_own saying "a port of the host was reached";
    CONTAINER: ShowsIdsOfTheHost breaks entries_are_shown_as_the_sandbox_sees_them saying "ids of the sandbox";
    CONTAINER: RefusesLayers breaks what_is_refused_is_refused_by_name_and_nothing_else_is
        saying "Layers is offered, and was refused";
    FNCALL: DropsLayers breaks what_is_refused_is_refused_by_name_and_nothing_else_is
        saying "Layers is refused, and was done";
}
