"""Every bound of the server, each with its reason. Standard library only; no behaviour.

Grouped by room. A queue, loop or window without a bound here is a bug.
"""

from __future__ import annotations

from typing import Final

# --- JetStream API: names and documents (the values clients and tools know) ---------------------

ASSET_NAME_BYTES_MAX: Final = 255  # becomes a file name and a subject token elsewhere
DESCRIPTION_BYTES_MAX: Final = 4 * 1024
METADATA_BYTES_MAX: Final = 128 * 1024  # sum of key and value lengths of one asset
REPLICAS_MAX: Final = 5
STREAM_NAME_PAGE: Final = 1024  # names per STREAM.NAMES / CONSUMER.NAMES page
LIST_PAGE: Final = 256  # infos per STREAM.LIST / CONSUMER.LIST page
SUBJECT_DETAIL_PAGE: Final = 100_000  # subjects per STREAM.INFO page
DELETED_DETAIL_PAGE: Final = 100_000  # deleted seqs per STREAM.INFO page: there may be billions
API_PENDING_MAX: Final = 10_000  # requests waiting for their outcome before new ones are dropped
API_SUBJECT_CACHE_MAX: Final = 4096  # parsed API subjects; pulls of one consumer repeat theirs
FIRED_PER_TURN_MAX: Final = 64  # schedules; each is read and copied, some 30 us
FIRE_RETRY_MS: Final = 1000  # after a FIRE that could not be proposed
UNSURE_SCHEDULE_NS: Final = 60_000_000_000  # a schedule whose time zone is not known here waits
TRANSFORM_CACHE_MAX: Final = 1024  # compiled republish transforms; about one per stream
API_LEVEL: Final = 4  # JetStream API level of 2.14, which this server speaks
PRIORITY_GROUP_NAME_MAX: Final = 16

# --- JetStream API: between nodes ---------------------------------------------------------------

API_PARKED_MAX: Final = 1024  # requests that wait for a leader; more are told to come back
API_PARKED_MS: Final = 4000  # and how long: an election is over by then, clients wait 5 s
API_RETRY_MS: Final = 250  # waiting requests look again, should no leader have been announced
API_PURGED_AT_ONCE: Final = 128  # streams of an account, each an entry of the meta group's log
API_EVACUATED_AT_ONCE: Final = 8  # streams of a server: one choice of places sees the one before
API_LISTS_MAX: Final = 8  # of infos, served at a time; each asks all nodes, 2 ms of each
API_LISTS_WAITING_MAX: Final = 1024  # then more are dropped: clients wait 5 s
API_ANSWER_LATE_MS: Final = 1000  # an answer waits so long for what it tells of to be known here
API_ANSWER_LOOK_S: Final = 0.005  # how often that is looked at
API_EARLY_MS: Final = 1000  # an upload waits so long for its stream's leader to be found by clients
API_EARLY_S: Final = 0.05  # a pull that overtook the word of who listens waits so long for it
API_HOPS_MAX: Final = 3  # to the meta leader, on to the stream's, and one that has just changed
API_FORWARD_MS: Final = 10_000  # a request that was passed on is remembered; clients wait 5 s
API_CALL_MS: Final = 2000  # for the infos of streams that another node leads
SNAPSHOTS_MAX: Final = 32  # streams that a node sends as archives at a time
SNAPSHOT_CHUNK_BYTES: Final = 128 * 1024  # of an archive, in a message; as asked for between these
SNAPSHOT_CHUNK_MIN: Final = 1024
SNAPSHOT_CHUNK_MAX: Final = 1024 * 1024
SNAPSHOT_WINDOW_BYTES: Final = 8 * 1024 * 1024  # of an archive, sent and not acked
SNAPSHOT_WINDOW_MAX: Final = 32 * 1024 * 1024
SNAPSHOT_READ_BYTES: Final = 256 * 1024  # of blocks at a time: a few ms of the loop
SNAPSHOT_FLOW_MS: Final = 5000  # without an ack an archive ends
SNAPSHOT_INTEREST_MS: Final = 2000  # so long an archive waits for somebody to take it
RESTORES_MAX: Final = 32  # streams that a node is given as archives at a time
RESTORE_IDLE_MS: Final = 5000  # without a chunk an upload ends
RESTORE_ABANDONED_MS: Final = 10_000  # a stream whose restore nobody carries on goes after that
RESTORE_END_MS: Final = 60_000  # for the meta group to hear what became of a restore
RESTORE_COMMANDS_MAX: Final = 4  # log entries of one restore that are under way
RESTORE_COMMAND_BYTES: Final = 512 * 1024  # of messages, in one of them
RESTORE_WAITING_BYTES_MAX: Final = 16 * 1024 * 1024  # of chunks that came before others were read
RESTORE_SUBJECTS_KEPT: Final = 4096  # known to be those of messages, or not to be
RESTORE_RANGES: Final = 4096  # of deleted messages, in one entry
API_CONFIGURED_MS: Final = 4500  # for a new stream's leader; clients wait 5 s

# --- JetStream API: reads -----------------------------------------------------------------------

DIRECT_MULTI_SUBJECTS_MAX: Final = 1024  # more is `413 Too Many Results`
DIRECT_BATCH_BYTES_MAX: Final = 64 * 1024 * 1024  # as the connection's own pending limit
DIRECT_SCAN: Final = 65_536  # messages one step of a filtered get looks at
DIRECT_READ_CHUNK: Final = 256  # messages read at once for a batched get; bounds its memory

# --- JetStream API: defaults of configurations (ns where a time) --------------------------------

DUPLICATE_WINDOW_NS: Final = 120 * 1_000_000_000
SHORT_DURATION_NS_MIN: Final = 100_000_000  # smallest max_age, duplicate_window and heartbeat
MARKER_TTL_NS_MIN: Final = 1_000_000_000
ACK_WAIT_NS: Final = 30 * 1_000_000_000
MAX_WAITING: Final = 512  # pull requests one consumer holds
MAX_ACK_PENDING: Final = 1000
EPHEMERAL_INACTIVE_NS: Final = 5 * 1_000_000_000
PRIORITY_TIMEOUT_NS: Final = 120 * 1_000_000_000
REQUEST_EXPIRES_NS_MIN: Final = 1_000_000  # smallest max_expires a consumer may demand

# --- atomic batches -----------------------------------------------------------------------------

BATCH_ID_BYTES_MAX: Final = 64
BATCH_MSGS_MAX: Final = 1000
BATCH_MSGS_CONFIGURED_MAX: Final = 16_384  # one entry, hence applied in one turn: 0.05 s
BATCHES_PER_STREAM_MAX: Final = 50
BATCHES_PER_SERVER_MAX: Final = 1000
FAST_BATCHES_PER_STREAM_MAX: Final = 1000  # each is some 200 bytes of replicated state
BATCH_IDLE_MS_MAX: Final = 10_000  # an abandoned batch holds memory no longer than this
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024  # staged bytes of one stream, all batches together
BATCHES_BYTES_MAX: Final = 256 * 1024 * 1024  # and of all streams of a node, with what they take
BATCH_MSG_MEMORY_BYTES: Final = 192  # beside its bytes: a tuple, three objects, a place in a list

# --- producers and dead letters -----------------------------------------------------------------

PRODUCERS_DEFAULT: Final = 10_000  # known at a time; each is some 300 bytes of replicated state
PRODUCERS_MAX: Final = 100_000  # that may be configured: a snapshot copies them in 0.05 s
PRODUCER_ID_BYTES_MAX: Final = 128
PRODUCER_SEQUENCE_MAX: Final = (1 << 63) - 1
DEAD_LETTER_REASON_BYTES_MAX: Final = 512  # of what a client says when it terminates a message
DEAD_LETTERS_UNDER_WAY_MAX: Final = 64  # to one subject; each is read and copied
DEAD_LETTERS_PER_TURN_MAX: Final = 256
DEAD_LETTER_ANSWER_MS: Final = 5_000  # that the stream may take that is to store it
DEAD_LETTER_RETRY_MS: Final = 1_000  # after a first failure; twice as long after each further one
DEAD_LETTER_RETRY_MS_MAX: Final = 30_000

ACK_PENDING_PER_SUBJECT_MAX: Final = 65_536
PARKED_MSGS_MAX: Final = 10_000  # of a consumer: passed over, their subjects have enough unacked

# --- configuration ------------------------------------------------------------------------------
# Blocks and includes nested deeper are a mistake or an attack on the parser's stack.
CONFIG_DEPTH_MAX: Final = 64

# A chain of imports from account to account; nats-server looks no further either.
IMPORT_CHAIN_ACCOUNTS_MAX: Final = 1024

# --- node: turns, snapshots, buffers ------------------------------------------------------------

TURN_ENTRIES_MAX: Final = 256  # entries applied in one turn; then the loop serves others
LOOP_SHARE_S: Final = 0.002  # a group with more to do has the loop so long; then others go first
LOOP_TURNS_MAX: Final = 64  # of all groups in one round of the loop, about 6 ms; then sockets again
TURN_BYTES_MAX: Final = 4 * 1024 * 1024  # of entries taken from the log at once
ENTRY_OVERHEAD_BYTES: Final = 64  # what an entry costs in the log beside its payload
SNAPSHOT_EVERY_BYTES: Final = 96 * 1024 * 1024  # bounds what a restart replays: about a second;
# less on small disks: node/resources/disk_quota.py
INDEX_SUBJECTS_MAX: Final = 100_000  # with more, a stream that runs writes no `index.db`
"""Copying what it says would take more than 30 ms of the loop."""
SNAPSHOT_AT_STOP_BYTES: Final = 256 * 1024  # less is replayed faster than it is saved
STORE_BATCH_MSGS: Final = 4096  # messages of one log entry; a turn may make several
STORE_BATCH_BYTES: Final = 2 * 1024 * 1024  # of one log entry, unless one message has more
PUBLISH_KEPT_MS: Final = 2000  # publishes wait so long for a leader, then 10008: clients wait 5 s
PUBLISH_LOOK_S: Final = 0.5  # how often that is looked at; the most an earlier leader is waited for
PUBLISH_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024  # of one node; as much that may be sent again
SENT_AGAIN_WINDOW_NS_MIN: Final = 10_000_000_000  # shorter, a stream may forget ids meanwhile
PUBLISH_BACKLOG_BYTES_MAX: Final = 128 * 1024 * 1024  # then publishes get 10167: disk is behind
PUBLISH_MEMORY_BYTES: Final = 512  # counted there for a message beside its bytes: its objects
PUBLISH_BACKLOGS_BYTES_MAX: Final = 512 * 1024 * 1024  # and of all streams of a node together
UNCOMMITTED_BYTES_MAX: Final = 512 * 1024 * 1024  # of anything, per group; never reached by then
EXPIRY_RETRY_NS: Final = 100_000_000  # after the log refused to take an expiry
UNFORCED_DELAY_MS: Final = 10  # how long deliveries and plain acks wait for company
DELIVER_BUDGET_MSGS: Final = 512  # one cursor's share of a turn
DELIVER_TURN_MSGS: Final = 4096  # of all cursors together, about 10 ms; the others are next
STRETCH_MSGS_MIN: Final = 32  # fewer are sent one by one: a run costs a write of its own
READ_AHEAD_BYTES: Final = 256 * 1024  # of one block read for a cursor
READ_ONE_BYTES: Final = 16 * 1024  # of one block read for a single message
WAL_SEGMENT_BYTES: Final = 64 * 1024 * 1024
COLUMNS_CACHE_BYTES: Final = 128 * 1024 * 1024  # per node: where the messages of sealed blocks are
COLUMNS_SEALED_BYTES: Final = 16 * 1024 * 1024  # of these, of blocks that nobody asked for yet
RECLAIM_BYTES: Final = 64 * 1024 * 1024  # of dead blocks: worth snapshots to be rid of them
RECLAIM_AFTER_MS: Final = 5000  # so long after the one before; a busy stream makes more anyway
RECLAIM_EVERY_MS: Final = 1000  # while the disk is full: a snapshot that lets dead blocks go
REWRITE_AFTER_MS: Final = 10_000  # so long mostly dead: the rest will hardly go by itself
REWRITE_LOOK_MS: Final = 1000  # after something was removed; and one ms more per block
REWRITE_PAUSE_MS: Final = 250  # between two: at most half a block each, through log and peers
REWRITE_BLOCKS_MAX: Final = 16  # of one entry: the columns of each are read on each replica
REWRITE_ROWS_MAX: Final = 128 * 1024  # messages ever stored in them: their columns are read
REWRITE_MSGS_MAX: Final = 16 * 1024  # of these, live: about 15 ms of the loop, once on each replica
TRIM_MSGS: Final = 4000  # removed by one entry, of a purge and the like: about 10 ms of the loop
TRIM_ROWS: Final = 20_000  # looked at in one turn to find them
WAL_SEGMENT_BYTES_MIN: Final = 4 * 1024 * 1024
WAL_SEGMENT_FRACTION: Final = 64  # of the free space: a log is a few segments
RESERVE_SEGMENTS: Final = 4  # kept free for the log to turn over and blocks to be written
ROOM_LOOK_BYTES: Final = 16 * 1024 * 1024  # how much is stored between two looks at the disk
STORE_LOOK_S: Final = 0.5  # how often the store directory is looked at: is it still there?
SLOW_LOOK_S: Final = 1.0  # how often the log is asked whether it waits for the disk
SLOW_S: Final = 2.0  # an append that takes longer, or a server that stood still, is told of
HUNG_S: Final = 10.0  # an append that takes longer: /healthz is 503
ROOM_CHECK_S: Final = 2.0  # how often the disk is looked at, for an operator to hear in time
STRAGGLER_CHECK_S: Final = 2.0  # how often groups that pin old log segments are snapshotted
"""Also the longest a freed stream keeps its share of the log."""
ROUTE_CACHE_MAX: Final = 65_536  # subjects whose streams a node remembers

# --- raft ---------------------------------------------------------------------------------------

RAFT_LOAD_BYTES: Final = 16 * 1024 * 1024  # a log up to this is read once at start, then kept
RAFT_READ_BYTES: Final = 1024 * 1024  # of the durable log at once, when it is walked at start
RAFT_TRAILING_ENTRIES: Final = 8192  # kept in memory for followers a little behind the leader
RAFT_TRAILING_BYTES: Final = 32 * 1024 * 1024  # the same window, in bytes, per group with peers
RAFT_WINDOWS_BYTES: Final = 256 * 1024 * 1024  # all of a node's, but for what is noted rarely:
RAFT_WINDOW_STEP_BYTES: Final = 16 * 1024  # a log that grew by less since
RAFT_ENTRY_MEMORY_BYTES: Final = 192  # what an entry takes there beside its data
RAFT_APPEND_BYTES: Final = 1024 * 1024  # of one append message; larger ones delay heartbeats
RAFT_APPEND_ENTRIES: Final = 1024  # of one append message
RAFT_INFLIGHT_APPENDS: Final = 64  # unanswered appends per peer; with the bytes bounds its link
TAIL_PIECE_BYTES: Final = 256 * 1024  # of a log that is set aside, read within one round
TAIL_LOOK_SEQS: Final = 1024  # messages of which a leader is asked at once whether it has them
TAIL_READ_MSGS: Final = 64  # of a stream that is set aside, read at once
TAILS_EVERY_S: Final = 30.0  # how often a node looks what lies in its `trash/`
RAFT_READS_MAX: Final = 65_536  # reads waiting for a leader's confirmation, per group
RAFT_READ_LOST_MS: Final = 2000  # without an answer: the question or the answer was lost

# --- cluster ------------------------------------------------------------------------------------

RAFT_ELECTION_MS: Final = 1000  # least silence before an election; a broken link is known at once
RAFT_HEARTBEAT_MS: Final = 250
STOOD_STILL_MS: Final = 250  # a timer this late: the machine or the disk held up the whole process
META_RESCUE_MS: Final = 300_000  # how long less than a majority may decide, as with nats-server
LEADERLESS_MS: Final = 4000  # silence after which no leader is to be expected: several elections
RAFT_COMMIT_DELAY_MS: Final = 5  # a stream's commit index waits so long for entries to ride with
EARLY_VOTES_MAX: Final = 1024  # groups not open yet whose candidates are remembered
TRANSFER_MS: Final = 1500  # a hand-over takes one election timeout at most
CHECKPOINT_ENTRIES: Final = 4096  # applied entries until replicas compare their digests
CHECKPOINT_EVERY_MS: Final = 10_000  # and at the latest, if anything changed and they did not rest
REST_CONSUMERS_MAX: Final = 128  # with more, a look at each whenever a stream rests is too much
COMPARE_DELAY_S: Final = 0.1  # what replicas hold is told to other nodes for many groups at once
COMPARE_ROWS: Final = 512  # of so many in one note: judging them takes the loop for 2 ms
LEARNER_LAG_ENTRIES: Final = 256  # a learner this close is made a voter
SHORTAGE_LOGGED_MS: Final = 2000  # acks are on too few disks for so long: the log says so
PLACEMENT_EVERY_S: Final = 0.5  # how often an unfinished change of a group's members is looked at
HEIR_EVERY_S: Final = 1.0  # how often another member of a group in doubt is asked to lead it
DOUBT_TOLD_S: Final = (
    10.0  # how often the log may tell of groups that are in doubt without a leader
)
REPLACEMENTS_MAX: Final = 64  # streams that get new peers at a time, after a server was removed
DEPARTURES_MAX: Final = 64  # groups asked at a time whether they have let this node go
DEPARTURE_MS: Final = 2000  # after that, or half a second after another answer, it is asked again
ACCOUNT_STORAGE_TOLD_S: Final = 0.25  # how late other nodes know what a limited account stores
FACTS_EVERY_S: Final = 10.0  # how often nodes tell each other how much they hold
BOOTSTRAP_RETRY_S: Final = 0.25
BOOTSTRAP_QUIET_LOOKS: Final = 12  # retries without a new server, where no route says how many
BOOTSTRAP_TOLD_LOOKS: Final = 8  # retries before an operator is told what is waited for
META_FRESH_RETRY_MS: Final = 250  # a node that starts asks again how far the meta log goes
CONFIGURED_MS: Final = 5000  # how long the meta leader waits for a stream's leader to follow
MEMORY_SNAPSHOT_BYTES: Final = 2 * 1024 * 1024  # a memory log can't be read back: compact in time
EVERYTHING: Final = 1 << 62  # an index beyond any log
STEP_DOWN_AT_STOP_S: Final = 1.0  # for handing over leaderships when the server stops
HAND_OVER_LOOK_S: Final = 0.005  # how often a stopping node looks if what it led is passed on
HAND_OVER_QUIET_LOOKS: Final = 5  # that all find nothing left: then it stops
RELAYED_MAX: Final = 65_536  # publishes of one node that wait for another's acks
RELAYED_MS: Final = 300_000  # how long; one that began anew may never answer, a slow one late

# --- scrubbing ----------------------------------------------------------------------------------

SCRUB_FIRST_S: Final = 60.0  # after a start, which has enough to read
SCRUB_EVERY_S: Final = 3600.0  # from the begin of one round to the next: bounds how long rot hides
SCRUB_BYTES_PER_S: Final = 8 * 1024 * 1024  # a block a second: some 5 % of a core, while it reads
SCRUB_LOG_BYTES_PER_S: Final = 2 * 1024 * 1024  # of 4 KiB batches, which take four times as much
SCRUB_HURRIED_BYTES_PER_S: Final = 64 * 1024 * 1024  # of a round that an operator waits for
SCRUB_PAUSE_S: Final = 0.2  # between two reads, however small, or less where files are many
SCRUB_REST_S: Final = 1.0  # made in one, after as many reads: each time the node must wake up
LOST_INDEXES: Final = 1000  # of the meta log, never used: lost entries may have had them
OPEN_AGAIN_S: Final = 10.0  # until a stream that stopped for want of files is opened again
UNREADABLE_AGAIN_MS: Final = 5000  # until a message that the disk did not give is asked for again
UNREADABLE_LISTED: Final = 8  # ranges of such messages that an error names
UNREADABLE_SHOWN: Final = 10_000  # of them in a StreamInfo, the first
UNREADABLE_COUNTED: Final = 200_000  # messages that one StreamInfo counts to learn their bytes
BLOCK_REPAIRS_MAX: Final = 4  # blocks fetched at a time: each is in memory meanwhile
BLOCK_RETRY_S_MAX: Final = 60.0  # between two tries to get a block that no peer had
DAMAGES_EVERY_S: Final = 2.0  # how often damage that could not be repaired is looked at again

# --- protocol -----------------------------------------------------------------------------------

PARSER_BULK_BYTES_MIN: Final = 512  # smaller chunks hold too few messages to gain from columns
PARSER_BULK_PAYLOAD_MAX: Final = 512  # above it, searching a payload for CRLF costs more
PARSER_BULK_RETRY_MAX: Final = 64  # chunks until a parser tries columns again after failures
PARSER_SIZES_MAX: Final = 512  # size fields a connection remembers; about 50 KB at most
CONTROL_LINE_BYTES_MAX: Final = 0xFFFF  # a subject must fit the length field of a record
CLUSTER_PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024  # an entry must fit a frame between servers
CLUSTER_PASSWORD_CHARS_MIN: Final = 16  # a shorter one can be found by trying; it is warned of
PEER_FRAME_BYTES_MAX: Final = 256 * 1024 * 1024  # from a proven peer: the largest single entry
PEER_RAFT_FRAME_BYTES: Final = 4 * 1024 * 1024  # of entries; then the next raft frame begins

# --- keys and signed tokens ---------------------------------------------------------------------

TOKEN_BYTES_MAX: Final = 1024 * 1024  # of a signed token, as nats-server's: accounts list a lot
TOKEN_DEPTH_MAX: Final = 64  # of objects and lists in its claims; known ones have eight
SHARED_SUBJECTS_MAX: Final = 1024  # exports of an account, and imports: each is compared with each
TEMPLATE_SUBJECTS_MAX: Final = 4096  # that one entry of a scope becomes, its tags multiplied

# --- account tokens -----------------------------------------------------------------------------

CLAIMS_REQUESTS_MAX: Final = 1024  # of operators and servers, that wait; a disk write serves each
CLAIMS_LOOKUPS_MAX: Final = 1024  # of accounts at other servers, at a time; each lasts two seconds
CACHED_TOKENS: Final = 1000  # of accounts in a directory that caches them, as nats-server's
CONSULTATIONS_MAX: Final = 4096  # logins that wait for a resolver or a service at a time
CONSULTATIONS_WAITING_MAX: Final = 65536  # behind them; more are refused
ACCOUNTS_AWAITED_MAX: Final = 4096  # accounts that other nodes name, and that are being loaded
ACCOUNTS_AGAIN_S: Final = 10.0  # until they are looked up again, if that was in vain
ACCOUNTS_LOADED_WITH_ONE_MAX: Final = 64  # that an account imports of, and those that they do

# --- links to other servers ---------------------------------------------------------------------

PEER_BEAT_S: Final = 0.25  # so a node that hangs is noticed after a second
PEER_SILENT_BEATS_MAX: Final = 4
PEER_CLOCK_SKEW_NS: Final = 300 * 1_000_000_000  # more between two nodes is worth a warning
CLOCK_STEP_NS: Final = 10 * 1_000_000_000  # a clock that is set by so much is, too
PEER_HANDSHAKE_BYTES_MAX: Final = 64 * 1024  # of a frame from who has not proven anything yet
PEER_HANDSHAKES_MAX: Final = 64  # connections that have not proven anything yet
PEER_FLUSH_BYTES: Final = 256 * 1024  # written at once instead of at the end of the iteration
PEER_APPEND_BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024  # above it appends are lost; Raft repeats
PEER_BUFFER_BYTES_MAX: Final = 256 * 1024 * 1024  # above it the link is closed: notes can't be lost
PEER_CALLS_MAX: Final = 16_384  # unanswered calls on one link
PEER_NODES_MAX: Final = 256  # nodes that others told of; bounds what a wrong one makes us dial
PEER_GOSSIP_TRIES_MIN: Final = 300  # dials of a node that others told of: ten minutes of them
PEER_DIAL_S: Final = 2.0  # for one attempt to connect
PEER_BACKOFF_S_MIN: Final = 0.05  # between two dials; it doubles
PEER_BACKOFF_S_MAX: Final = 2.0
PEER_REFUSALS_MAX: Final = 1024  # sources of refused links whose log line is not repeated
PEER_FAULTS_TOLD_MAX: Final = 64  # kinds of failure of one link that the log is told of

# --- process and monitoring ---------------------------------------------------------------------

SHUTDOWN_S: Final = 4.0  # what waits for a server to end waits 5 s; all acked is in the log anyway
UNSERVED_AT_STOP_S: Final = 0.2  # clients wait so long for the end of a server whose groups left
LEAF_LINE_BYTES_MAX: Final = 1024 * 1024  # as nats-server's limit of a token, which CONNECT has
LEAF_LOGIN_BLOCK_BYTES: Final = 128 * 1024  # of S2, before a login: decoding holds the loop
LEAF_PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024  # the most that max_payload may be at a hub
LEAF_HANDSHAKES_MAX: Final = 64  # connections of leaf nodes that have not logged in yet
LEAF_SUBS_MAX: Final = 1_000_000  # interest told on one link: some 300 MB
LEAF_URLS_MAX: Final = 256  # addresses of a hub's servers; bounds what a wrong one makes us dial
LEAF_FAULT_RETRY_S: Final = 30.0  # after a fault that another try soon would repeat, as a loop
LEAF_VERSION_RETRY_S: Final = 5.0  # after a hub asked for a newer version
LEAF_FIRST_PING_S: Final = 1.0  # so that the round-trip time is known soon
WEBSOCKET_HANDSHAKE_S: Final = 10.0  # where none is configured: a socket without one holds a file
WEBSOCKET_HANDSHAKES_MAX: Final = 1024  # under way at once; more are closed unheard
WEBSOCKET_REQUEST_BYTES_MAX: Final = 64 * 1024  # of one handshake: cookies may be tokens
WEBSOCKET_STRANGER_BYTES: Final = 64 * 1024  # in a frame of a client that has not logged in
WEBSOCKET_FRAME_BYTES_MIN: Final = 1024 * 1024  # clients send many small messages in one frame
WEBSOCKET_FRAME_PAYLOADS: Final = (
    8  # a frame may hold so many times `max_payload`, within these two
)
WEBSOCKET_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
WEBSOCKET_CHUNK_BYTES: Final = 256 * 1024  # content of frames that is handled at once
WEBSOCKET_PLAIN_BYTES: Final = 64  # so little is not compressed
WEBSOCKET_BROWSER_FRAME_BYTES: Final = 4096  # as nats-server: browsers are served better by these
WEBSOCKET_CLOSE_TEXT_BYTES: Final = 123  # a control frame has 125 bytes, of which two are the code
HTTP_SHUTDOWN_S: Final = 0.5  # for answers under way when the server stops
HTTP_CONNECTIONS_MAX: Final = 64  # at once: who only connects takes a file that streams may need
HTTP_FIRST_REQUEST_S: Final = 5.0  # until a connection must have asked something
HTTP_IDLE_S: Final = 75.0  # between requests: above what scrapers leave between two looks
HTTP_BACKLOG: Final = 128  # connections that wait while the HTTP library is being loaded
HTTP_PIECE_BYTES: Final = 128 * 1024  # of an answer, before it is sent and the client's pace counts
HTTP_ANSWER_S: Final = 60.0  # for one answer: a client that does not read holds one of the places
DASHBOARD_SESSIONS_MAX: Final = 256  # 0.5 kB each; the one that was unused for longest gives way
DASHBOARD_SESSION_IDLE_S: Final = 3600.0  # without a request, and without an open page
DASHBOARD_SESSION_S: Final = 12 * 3600.0  # a working day, then a login is asked for again
DASHBOARD_FREE_FAILURES: Final = 4  # logins that fail from one address before it must wait ...
DASHBOARD_PENALTY_S: Final = 1.0  # ... so long, twice as long after each further one ...
DASHBOARD_PENALTY_S_MAX: Final = 30.0  # ... up to this: a person waits, a guesser gets nowhere
DASHBOARD_FORGIVEN_S: Final = 900.0  # after the last failure, an address begins anew
DASHBOARD_SOURCES_MAX: Final = 1024  # addresses whose failed logins are remembered
DASHBOARD_LIVE_MAX: Final = 24  # event streams: connections left over serve scrapers and pages
DASHBOARD_PAGE: Final = 100  # rows of a list, at most
DASHBOARD_PAGE_DEFAULT: Final = 50
DASHBOARD_SORT_ROWS: Final = 1024  # sorted in one step: 0.5 ms
DASHBOARD_ANSWER_S: Final = 0.8  # for another node: a dead one must not hold up a page for longer
DASHBOARD_REMOTE_ROWS: Final = 500  # streams that another node is asked for in one call
DASHBOARD_REMOTE_CONSUMERS: Final = 5000  # that another node tells of in one answer
DASHBOARD_FRESH_S: Final = 2.0  # what other nodes said is not asked for again before
DASHBOARD_RATE_S: Final = 1.0  # between two looks at a counter that make a rate, at least ...
DASHBOARD_RATE_S_MAX: Final = 60.0  # ... and at most: an older look says nothing of now
DASHBOARD_OVERVIEW_S: Final = 1.0  # between two overviews, however many watch
DASHBOARD_SUMMED_STREAMS_PER_S: Final = 1000  # 30 ms of work; health of 5,000 is judged every 5 s
DASHBOARD_EVENTS: Final = 500  # that are kept for a page that is opened later
DASHBOARD_EVENTS_WAITING_MAX: Final = 200  # for one event stream; the rest is left out, and counted
DASHBOARD_EVENT_CHARS: Final = 2000  # of a text
DASHBOARD_WRITE_S: Final = 10.0  # for a write to a browser that does not read
DASHBOARD_TAIL_S: Final = 0.5  # between two looks for new messages
DASHBOARD_TAIL_MSGS: Final = 50  # shown of one such look; others are counted
DASHBOARD_PAYLOAD_BYTES: Final = 64 * 1024  # shown of one message
DASHBOARD_MESSAGES_BYTES: Final = 4 * 1024 * 1024  # read for one page of messages
DASHBOARD_SCAN_STEP: Final = 4096  # messages that one step of a search looks at: 0.5 ms
DASHBOARD_SCAN_MAX: Final = 512 * 1024  # that one request looks at; the answer says where to go on
DASHBOARD_SUBJECTS: Final = 20_000  # that the most frequent ones of a stream are sought among
DASHBOARD_TOP: Final = 10  # subjects
DASHBOARD_BLOCKS: Final = 2000  # of a stream, the newest, in its map
DASHBOARD_BODY_BYTES: Final = 16 * 1024  # of a request
DASHBOARD_API_S: Final = 6.0  # for the answer of the JetStream API to an action
DASHBOARD_WATCHED_S: Final = 600.0  # after the last look, advisories are listened to no more
MONITORING_PAGE: Final = 1024  # connections, subscriptions, streams ... in one answer, at most
MONITORING_ROWS_MAX: Final = 16 * 1024  # in one answer with those inside of others: 10 MB of text
DIGEST_RANGES_MAX: Final = 256  # of one replica in one answer: three rounds find one in 16 million
MONITORING_PINGS_MAX: Final = 64  # requests by $SYS.REQ that are being answered
SYSTEM_PIECE_CHARS: Final = 32 * 1024  # of an answer: compressed in one step, 0.3 ms with gzip
SYSTEM_EVENTS_MAX: Final = 16 * 1024  # that wait for their turn of the loop: 20 MB; more are lost
SUBSCRIBERS_WAIT_S: Final = 0.5  # for other servers' counts of subscribers, as in nats-server
SUBSCRIBERS_ASKED_MAX: Final = 64  # counts of other servers' subscribers that are waited for
CONNECTIONS_EVENT_S: Final = 30.0  # between two reports of an account's connections, as nats-server
CONNECTIONS_REST_S: Final = 1e-4  # after such a report, for each connection: adding up takes 3 us
STATS_EVENT_FIRST_S: Final = 0.25  # after the start; each of the next takes twice as long ...
STATS_EVENT_S: Final = 10.0  # ... up to this, which nats-server's tools count on
SLICE_S: Final = 0.00003  # a page being built holds the loop so long, and then others have a turn
SLICE_STEPS: Final = 256  # ... or for so many steps, whatever the clock says
SLICE_LOOKS: Final = 16  # of what is only looked at, in one step: some 30 us
SLICE_GROUPS: Final = 8  # groups whose state is made out, in one step
CLOSED_SUBSCRIPTIONS_MAX: Final = 32  # kept of a closed connection, 0.3 kB each; all are counted
CURRENT_LAG_MAX: Final = 1000  # entries a replica under load is behind and still called current

# --- net ----------------------------------------------------------------------------------------

NET_ROUTE_CACHE_MAX: Final = 16_384  # subjects, and as many reply prefixes, with known routes
RIGHTS_CACHE_MAX: Final = 4096  # verdicts on subjects, per connection of a user with permissions
PASSWORD_CHECKS_WAITING_MAX: Final = 8192  # a storm of reconnects fits in, which costs one check
REPLY_GRANTS_MAX: Final = 16_384  # replies a connection may answer; the oldest lapse first
FANOUT_BYTES: Final = 4 * 1024 * 1024  # gathered for all receivers of a chunk, then written
FANOUT_MSG_BYTES: Final = 64  # what a message costs there beside its content
CLIENT_SHARE_S: Final = 0.005  # a client has the loop so long for one chunk; then others go first
CONGESTED_BYTES: Final = 1024 * 1024  # buffered for one receiver; then deliveries to it pause
LISTENER_CLOSE_S: Final = 1.0  # for last bytes to clients when the server stops
STALL_S: Final = 0.01  # how long a publisher rests when a receiver is 3/4 of the way to eviction
SERVICE_RESPONSES_MAX: Final = 65_536  # expected of an account's services, 0.5 kB each
REMOTE_NOTE_BYTES: Final = 1024 * 1024  # of messages to a node at once; longer delays heartbeats
REMOTE_NOTE_SUBS: Final = 8192  # subscriptions told at once; for the same reason
REMOTE_CHANGES_MAX: Final = 64  # more changed subscriptions at once: forget all routes instead
REMOTE_CONGESTED_BYTES: Final = 2 * 1024 * 1024  # on a link; then deliveries over it pause
REMOTE_STALL_BYTES: Final = 8 * 1024 * 1024  # on a link; then clients that publish rest

# --- consumers ----------------------------------------------------------------------------------

FLOW_WINDOW_BYTES_MIN: Final = 2 * 1024 * 1024  # first flow-control window of a push consumer
FLOW_WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024  # it doubles up to here with each answer
POSITION_EVERY_MS: Final = 1000  # how often a consumer without acks logs where it is
SCAN_MSGS_MAX: Final = 8192  # messages one plan looks through for a rare filter
CONGESTED_RETRY_MS: Final = 10  # a receiver's buffer is full: look again, should nobody ring

# --- process ------------------------------------------------------------------------------------

HEAP_KEPT_BYTES: Final = 8 * 1024 * 1024  # free at the end of the heap, while there is work to do
HEAP_STEP_BYTES: Final = 1024 * 1024  # by which the heap grows
HEAP_BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024  # larger ones have pages of their own
TRIM_LOOK_S: Final = 5.0  # how often a process looks if it rests and holds freed memory
TRIM_CPU_SHARE: Final = 0.05  # of a core: with less it rests
TRIM_BYTES_MIN: Final = 16 * 1024 * 1024  # resident beyond what was left the last time
GC_THRESHOLDS: Final = (50_000, 2, 20_000)  # batches make many tuples that die young and acyclic
"""A look at 50,000 objects holds the loop for 12 ms. What survives two such looks is looked at
once more, together, and then hardly ever: after fifty of them that took a second."""
SWITCH_INTERVAL_S: Final = 0.0005  # how long a running thread keeps the interpreter from another
OPEN_FILES: Final = 65_536  # connections, and a file of each stream being written
OPEN_FILES_KEPT: Final = 4096  # of them not for clients: without a file to write a stream stops
OPEN_FILES_KEPT_FRACTION: Final = 2  # where the process may open few, that share of them
OPEN_FILES_MIN: Final = 64  # that a server with JetStream needs: 30 at rest, some to work with
OPEN_FILES_OTHER: Final = 192  # of those kept: the log, listeners, monitoring, peers, reads
OPEN_FILES_RESERVED: Final = 16  # held open, and given up for one that must be opened

# --- catch-up -----------------------------------------------------------------------------------

CATCHUP_CHUNK_BYTES: Final = 256 * 1024  # one answer; larger ones delay what else is on the link
CATCHUP_WINDOW: Final = 8  # chunks asked for and not yet written: 2 MiB, some 100 MB/s on a LAN
CATCHUP_GROUPS_MAX: Final = 4  # of a node at a time; times the window: 8 MiB under way
CATCHUP_BAD_FILE_TRIES: Final = 2  # the same file, damaged again: the leader's copy is suspect
CATCHUP_RETRY_S_MIN: Final = 0.05  # after an attempt failed; doubles up to
CATCHUP_RETRY_S_MAX: Final = 2.0  # this, for ever: there is nothing better to do
CATCHUP_VOID_S_MAX: Final = 60.0  # until a snapshot is fetched after one that could not be used
CATCHUP_OFFER_MS: Final = 5000  # an offer that a leader means is renewed each second or so
CATCHUP_STATES_MAX: Final = 4  # states a leader keeps at hand for those who fetch them
CATCHUP_MANIFEST_TURNS_MAX: Final = 8  # newer snapshots met while one manifest is being made

# --- mirrors and sources ---
ORIGIN_RETRY_MS: Final = 2_000  # between two requests for a consumer at an origin
ORIGIN_BACKOFF_MS: Final = 10_000  # more for each request that failed, as nats-server waits
ORIGIN_BACKOFF_MS_MAX: Final = 120_000
ORIGIN_ANSWER_MS: Final = 30_000  # that an origin may take to answer
ORIGIN_RESET_MS: Final = 5_000  # that a user's consumer may take
ORIGIN_SILENT_MS: Final = 10_000  # without a message or heartbeat: the consumer is gone
ORIGIN_FLIGHT_BYTES_MAX: Final = 64 * 1024 * 1024  # proposed and not applied: ask for no more
ORIGIN_EARLY_MSGS_MAX: Final = 100_000  # of a consumer whose creation is not answered yet
MIRROR_DIRECT_LAG_MAX: Final = 10  # messages; a mirror further behind answers no direct gets
