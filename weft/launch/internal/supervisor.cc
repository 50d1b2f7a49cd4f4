// The event loop of the launcher. One thread does everything, so there are no locks. It must stay
// the only one: the launcher forks ranks, spares, servers and helpers at any time, and a fork
// copies no other thread. What needs a thread has a process of its own (store_process.h).
//
//   watch():  decide() ──> execute the action ──> decide() …
//                └─ kWait ──> wait_for_events(): poll(), then each part takes its events
//
// Signals are blocked and read from a descriptor. After poll(), events are taken in this order:
// signals, output, ends of ranks, servers, the membership, spares, requests. Signals come before
// ends, so that a rank which Ctrl-C has ended counts as told to stop. The messages of a rank come
// before its end, so decide() never sees an end without them.
//
// An attempt starts with its store process. A rank enters its process group there before its
// program runs, so a launcher that is killed leaves nothing behind. Parameter servers start before
// the ranks, which use them. The destructor goes the other way: ranks and servers end before the
// store process that guards them.
#include "weft/launch/internal/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/json/error_file.h"
#include "weft/base/process/output.h"
#include "weft/base/text/variables.h"
#include "weft/base/text/words.h"
#include "weft/comm/init.h"
#include "weft/launch/internal/node_reports.h"
#include "weft/launch/internal/one_node.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/internal/report.h"

namespace weft::launch::internal {
namespace {

// A rank has a pidfd, a link and two pipes. The store process, a start and a report need some for a
// while.
constexpr int kDescriptors = 32, kDescriptorsPerRank = 4;

Time now() { return std::chrono::steady_clock::now(); }

// The socket on which the job's store will listen; none if another node hosts it, or if the nodes
// meet.
Fd make_listener(Job& job) {
  require_descriptors(kDescriptors +
                      kDescriptorsPerRank * (job.local_world + job.spares + job.servers));
  if (job.node_rank != 0 || job.membership) return Fd();
  return listen_for_store(job.master_addr, job.master_port, &job.master_port);
}

}  // namespace

Supervisor::Supervisor(const LaunchOptions& options, std::function<int(int)> run)
    : node_(options),
      listener_(make_listener(node_.job)),
      starter_(node_, std::move(run)),
      departures_(node_),
      hangs_(node_),
      autoscaler_(node_),
      servers_({.has_copies = node_.job.server_backup,
                .start = [this](int server) { return starter_.start_server(server); },
                .note = [this](const std::string& text) { node_.note(text); },
                .on_end = [this](pid_t group) { node_.store->forget(group); }}) {
  outlive_readers();  // the ranks go on, and save their checkpoint
  if (node_.job.servers > 0 && !node_.job.membership)
    node_.job.servers_folder = starter_.make_servers_folder();
  control_.emplace();
  signals_.emplace(departures_.signals());
  const int threads = threads_per_rank(node_.job.local_world);
  if (threads > 0 && !is_variable_set("OMP_NUM_THREADS")) {
    node_.note("OMP_NUM_THREADS is not set: " + std::to_string(threads) + " for each of " +
               std::to_string(node_.job.local_world) + " ranks");
  }
}

Supervisor::~Supervisor() {
  starter_.spares().clear();
  node_.ranks.clear();
  if (node_.store) servers_.end();
  follower_.reset();
  node_.store.reset();
  std::error_code ignored;
  if (!node_.job.servers_folder.empty())
    std::filesystem::remove_all(node_.job.servers_folder, ignored);
}

int Supervisor::run() {
  const int code = node_.job.membership ? run_by_membership() : run_attempts();
  // Of several nodes, one requeues the job: node 0, or the one whose request ended it.
  departures_.requeue(follower_ ? follower_->membership().stop_node : 0);
  control_->serve([&](const std::string& request) -> std::optional<std::string> {
    return request.starts_with("stop") ? departures_.final_answer(code) : "the job has ended";
  });
  finish_output();
  return code;
}

// Waits until all output is read. Who asked the job to end does not wait for it.
void Supervisor::finish_output() {
  constexpr auto kLimit = std::chrono::seconds(1);
  const Situation& seen = node_.situation;
  std::optional<Deadline> limit;
  if (seen.stop_signals > 0 || seen.asked || (seen.followed && seen.followed->stopped))
    limit = Deadline::in(kLimit);
  while ((node_.out->is_full() || node_.err->is_full()) && !(limit && limit->passed())) {
    std::vector<pollfd> watched = {{signals_->fd(), POLLIN, 0}};
    for (const Console* console : {node_.out.get(), node_.err.get()}) console->watch(watched);
    ::poll(watched.data(), watched.size(), limit ? limit->left_ms() : -1);
    while (signals_->next()) limit = limit.value_or(Deadline::in(kLimit));
    for (Console* const console : {node_.out.get(), node_.err.get()}) console->flush();
  }
  std::size_t dropped = 0;
  for (Console* const console : {node_.out.get(), node_.err.get()}) {
    console->drop();
    dropped += console->take_dropped();
  }
  if (dropped > 0)
    node_.note(std::to_string(dropped) + " bytes of output were dropped: nobody read them");
}

int Supervisor::run_by_membership() {
  follower_ = std::make_unique<Follower>(node_, starter_, departures_, servers_);
  watch();
  servers_.end();
  if (node_.situation.followed->away) return departures_.end_of_leaving();
  departures_.say_how_it_went();
  if (const auto code = follower_->end()) return *code;
  const auto failed = first_failure(node_.situation);
  if (failed && !node_.situation.ranks[static_cast<std::size_t>(*failed)]->done_without) {
    node_.err->print(report(node_.situation));
    return code_after(*node_.situation.ranks[static_cast<std::size_t>(*failed)]);
  }
  return follower_->membership().done ? 0 : departures_.stop_code();
}

// A replacement gets no signal before it has joined the others. If they ask it to stop, it ends as
// after SIGTERM, also when the launcher got SIGINT.
int Supervisor::code_after(const RankEnd& end) const {
  const bool was_asked = !end.status.signaled && end.status.code() == 128 + SIGTERM;
  return was_asked && node_.situation.stop_signals > 0 ? departures_.stop_code()
                                                       : end.status.code();
}

int Supervisor::run_attempts() {
  start_attempt();
  for (;;) {
    const Act last = watch();
    servers_.end();
    const bool again = last != Act::kFinish;
    if (!again) departures_.say_how_it_went();
    const Situation whole = situation_of_job();
    const auto failed = first_failure(whole);
    // The store, or the servers, are at fault if no rank had failed before the ranks were told to
    // stop because of them.
    const bool by_store =
        node_.situation.store_lost && (failed ? whole.ranks[static_cast<std::size_t>(*failed)]->told
                                              : whole.stop_sent.has_value());
    const bool by_servers = node_.situation.servers_lost && failed &&
                            whole.ranks[static_cast<std::size_t>(*failed)]->told;
    if (failed && !by_store && !by_servers) node_.err->print(report(whole));
    if (!again && by_store) return end_of_store();
    if (!again && by_servers) return end_of_servers();
    if (!again && whole.hang) return exit_code(Errc::kTimeout);
    if (!again) return failed ? code_after(*whole.ranks[static_cast<std::size_t>(*failed)]) : 0;
    begin_again(last);
    if (!start_again()) {
      departures_.say_how_it_went();
      return departures_.stop_code();
    }
  }
}

// As start_attempt(), for about a minute while the machine has no process or memory for all ranks.
// False: the job was told to stop meanwhile.
bool Supervisor::start_again() {
  for (int failures = 0;;) {
    try {
      start_attempt();
      return true;
    } catch (const std::exception& error) {  // also one of the file system: a full disk
      if (code_of(error) != Errc::kUnavailable || ++failures >= kMaxFailedStarts) throw;
      node_.ranks.clear();
      servers_.end();
      if (failures == 1)
        node_.note("the ranks cannot be started now: " + describe(error) +
                   "; this is tried again, and said once");
    }
    const Time again = now() + back_off(failures, kMaxStartBackOff);
    for (Time at = now(); at < again; at = now()) {
      std::vector<pollfd> watched = {{signals_->fd(), POLLIN, 0}};
      control_->watch(watched);
      ::poll(watched.data(), watched.size(), Deadline::at(again).left_ms());
      on_signals();
      control_->serve([this](const std::string& request) { return answer(request); });
      if (node_.situation.stop_signals > 0 || node_.situation.asked) return false;
    }
  }
}

void Supervisor::begin_again(Act how) {
  const bool meets = !node_.situation.meeting.empty();
  node_.resume_run = how == Act::kRestore ? node_.run_folder : "";
  const std::string why =
      node_.situation.store_lost
          ? "the process that holds the store has ended: " + node_.store->poll()->describe() +
                ": starting all ranks again"
          : std::string(meets ? "a rank is lost before all ranks have met" : "all ranks are lost") +
                ": starting them again";
  node_.situation = next_attempt(node_.situation, how);
  if (how == Act::kRestore) {
    node_.note(why + (node_.resume_run.empty() ? "" : ", from the newest checkpoint") +
               count_of_replacements());
  } else {
    node_.note("restarting all ranks (restart " + std::to_string(node_.situation.restarts) +
               " of " + std::to_string(node_.policy.max_restarts) + ")");
  }
}

// The store process has ended first. It prints its own error.
int Supervisor::end_of_store() {
  const auto status = node_.store->poll();
  node_.note("the process that holds the store ended first: " + status->describe());
  return status->ok() ? exit_code(Errc::kInternal) : status->code();
}

void Supervisor::start_attempt() {
  node_.attempt_began = now();
  starter_.spares().clear();
  node_.ranks.clear();
  node_.store.reset();
  node_.note_out_of_memory();
  StoreProcess::Options keeping;
  keeping.listener = listener_.get();
  keeping.host = node_.job.master_addr;
  keeping.port = node_.job.master_port;
  keeping.lost_key = comm::lost_rank_key(node_.job.run_id, node_.situation.restarts);
  keeping.gone_key = comm::gone_ranks_key(node_.job.run_id, node_.situation.restarts);
  gone_.clear();
  node_.has_state = false;
  keeping.folder = starter_.folder_to_remove();
  node_.store = std::make_unique<StoreProcess>(keeping);
  run_servers();
  const int wanted = node_.situation.job.wanted.ranks;
  const int count = wanted > 0 ? wanted : node_.job.local_world;
  set_places(node_.job, node_.options, count);
  node_.positions.set_ranks(count);
  begin_attempt(node_.situation, count);
  for (int local = 0; local < count; ++local) node_.ranks.push_back(starter_.start_rank(local));
}

Act Supervisor::watch() {
  for (;;) {
    const Decision decision = decide(node_.situation, node_.policy, now());
    const bool replaces =
        decision.act == Act::kReplace || (decision.act == Act::kWait && decision.rank >= 0);
    // Ranks that form their group again wait for a lost rank until the store calls it gone. So it
    // is called gone only if decide() does not replace it.
    if (!replaces) tell_gone();
    switch (decision.act) {
      case Act::kWait: wait_for_events(decision.until); break;
      case Act::kReplace: replace(decision); break;
      case Act::kGoOnWithout: go_on_without(decision.rank, "the others go on without it"); break;
      case Act::kGrow: grow(decision); break;
      case Act::kAnnounce:
        commit(node_.situation, decision);
        node_.announce(decision.ranks, decision.newcomers);
        break;
      case Act::kDismiss: dismiss(decision.rank); break;
      case Act::kTerminate:
        node_.situation.stop_sent = now();
        node_.note_stopped_ranks();
        if (node_.situation.asked) {
          node_.ask_to_stop(SIGTERM);
        } else {
          node_.send(SIGTERM);
        }
        break;
      case Act::kKill:
        node_.note("killing the remaining ranks: " + decision.reason);
        if (!node_.situation.stop_sent) node_.situation.stop_sent = now();
        node_.situation.kill_sent = now();
        node_.send(SIGKILL);
        break;
      case Act::kAbandon: abandon(decision.rank); break;
      case Act::kRestart:
      case Act::kRestore:
      case Act::kFinish: return decision.act;
    }
  }
}

void Supervisor::wait_for_events(std::optional<Time> until) {
  std::vector<pollfd> watched = {{signals_->fd(), POLLIN, 0}};
  control_->watch(watched);
  if (!node_.store->poll()) watched.push_back({node_.store->pidfd(), POLLIN, 0});
  if (follower_) follower_->watch(watched);
  for (std::size_t i = 0; i < node_.ranks.size(); ++i) {
    if (node_.situation.ranks[i]) continue;
    const RankProcess& rank = node_.ranks[i];
    watched.push_back({rank.process.pidfd(), POLLIN, 0});
    if (!rank.link.ended()) watched.push_back({rank.link.fd(), POLLIN, 0});
    rank.out.watch(watched);
    rank.err.watch(watched);
  }
  for (const Console* console : {node_.out.get(), node_.err.get()}) console->watch(watched);
  starter_.spares().watch(watched);
  servers_.watch(watched);
  departures_.watch(watched);
  autoscaler_.watch(watched);
  hangs_.look();
  const Time look = next_look();
  until = until ? std::min(*until, look) : look;
  ::poll(watched.data(), watched.size(), Deadline::at(*until).left_ms());
  on_signals();
  for (Console* const console : {node_.out.get(), node_.err.get()})
    console->begin_turn(node_.is_ending());
  for (RankProcess& rank : node_.ranks) {
    rank.out.pump();
    rank.err.pump();
  }
  collect_ends();
  look_after_servers();
  if (follower_) follower_->follow();
  look_after_spares();
  departures_.look(others_can_go_on());
  autoscaler_.look(is_calm());
  control_->serve([this](const std::string& request) { return answer(request); });
}

// When a part has something to do, besides events.
Time Supervisor::next_look() {
  Time look = now() + HangWatch::kPeriod;
  for (const auto due : {starter_.spares().next(), servers_.next(now()), departures_.next(),
                         autoscaler_.next(), follower_ ? follower_->next() : std::nullopt})
    look = due ? std::min(look, *due) : look;
  return look;
}

void Supervisor::on_signals() {
  while (const auto signal = signals_->next())
    departures_.on_signal(*signal, others_can_go_on(), now());
}

void Supervisor::collect_ends() {
  const Time seen = now();
  for (std::size_t i = 0; i < node_.ranks.size(); ++i) {
    if (node_.situation.ranks[i]) continue;
    const int local = static_cast<int>(i);
    hear(local);
    const pid_t group = node_.ranks[i].process.pid();
    const auto status = node_.ranks[i].process.poll();
    if (!status) continue;
    hear(local);  // what it told before its end
    // poll() has reaped the process: the system may use the number of its group again.
    node_.store->forget(group);
    collect_end(local, *status, seen);
  }
  if (follower_ && node_.store->poll()) return follower_->renew_guard();
  if (node_.store->poll()) node_.situation.store_lost = true;
}

void Supervisor::collect_end(int local, const ExitStatus& status, Time seen) {
  Situation& situation = node_.situation;
  RankProcess& ended = node_.ranks[static_cast<std::size_t>(local)];
  const bool leaves = ended.leaves;
  const int rank = node_.job.rank(local);
  if (!status.ok() && leaves) {
    node_.note("rank " + std::to_string(rank) +
               " had left the job when it ended: " + status.describe());
  } else if (!status.ok()) {
    node_.store->tell_lost(rank);
  }
  const bool unmet =
      situation.other_nodes && !node_.job.membership && situation.meeting.erase(local) > 0;
  ended.out.finish();
  ended.err.finish();
  situation.ranks[static_cast<std::size_t>(local)] =
      RankEnd{.status = leaves ? ExitStatus{} : status,
              .when = seen,
              .cause = read_error_file(starter_.error_file_of(local)),
              .told = situation.stop_sent.has_value(),
              .joining = situation.newcomers.contains(local),
              .unmet = unmet};
  note_end_of_newcomer(local);
  departures_.on_end_of(local);
}

// Takes the messages of a rank since the last call.
void Supervisor::hear(int local) {
  while (const auto text = node_.ranks[static_cast<std::size_t>(local)].link.next()) {
    if (const auto message = rank_link::decode<rank_link::RankMessage>(*text))
      take(local, *message);
  }
}

void Supervisor::take(int local, const rank_link::RankMessage& message) {
  using namespace rank_link;
  Situation& situation = node_.situation;
  if (follower_) follower_->note_phase(local, message);
  std::visit(
      Cases{[&](const Joining&) {
              if (situation.newcomers.contains(local))
                situation.newcomers[local] = RankPhase::kWaiting;
            },
            [&](const Meeting&) { situation.meeting.insert(local); },
            [&](const Joined&) { note_joined(local); },
            [&](const Refused&) { situation.newcomers[local] = RankPhase::kStarting; },
            [&](const Leaving&) {
              node_.ranks[static_cast<std::size_t>(local)].leaves = true;
              situation.job.ranks.erase(local);
            },
            [&](const Usable& usable) { situation.job.usable = usable.ranks; },
            [&](const GroupSize& size) {
              node_.size = size.value;
              if (!follower_) end_needless();
            },
            [&](const StepsDone& steps) { situation.step = steps.value; },
            [&](const Copied&) { node_.has_state = true; },
            [&](const RunFolder& folder) { node_.run_folder = folder.value; },
            [&](const RunBegun& run) {
              node_.run_folder = run.value;
              situation.trained = true;
            },
            [&](const Unsaved&) { situation.unsaved = true; },
            [&](const Stopping& stopping) { departures_.on_stop_of(local, stopping.by_signal); },
            [&](const Throughput& rate) { autoscaler_.add_throughput(rate.value); },
            [&](const CheckpointSaved& saved) { departures_.on_checkpoint(saved.value); },
            [](const Ready&) {}},  // of a spare
      message);
}

void Supervisor::note_joined(int local) {
  Situation& situation = node_.situation;
  situation.meeting.erase(local);
  if (situation.newcomers.contains(local) && !is_added(situation, local))
    node_.store->tell_joined(node_.job.rank(local));
  join(situation, local);
}

// True if the job trains, and no rank joins or ends.
bool Supervisor::is_calm() const {
  return node_.is_calm() && (!follower_ || follower_->membership().formed);
}

void Supervisor::look_after_spares() {
  const bool is_ending =
      node_.situation.stop_sent || departures_.is_leaving() ||
      (follower_ && follower_->is_over()) ||
      std::any_of(node_.situation.ranks.begin(), node_.situation.ranks.end(),
                  [](const auto& end) { return end && end->status.ok() && !end->left; });
  if (is_ending) starter_.spares().clear();
  starter_.spares().look(std::chrono::steady_clock::now(), is_calm() && !is_ending);
}

void Supervisor::look_after_servers() {
  servers_.look(Deadline::Clock::now());
  if (!servers_.failure() || node_.situation.servers_lost) return;
  node_.situation.servers_lost = servers_.failure();
  if (follower_) return;  // the membership ends the job, on all nodes
  node_.note(*node_.situation.servers_lost + ": the job ends");
  // Ranks that wait for a lost server would use up the whole time.
  if (!node_.situation.grace_end)
    node_.situation.grace_end = Deadline::Clock::now() + node_.policy.survivor_grace;
}

// On one node, all servers.
void Supervisor::run_servers() {
  std::set<int> wanted;
  for (int server = 0; server < node_.job.servers; ++server) wanted.insert(server);
  servers_.run(wanted, Deadline::Clock::now());
}

int Supervisor::end_of_servers() const {
  node_.note("the job has ended: " + *node_.situation.servers_lost);
  return exit_code(Errc::kPeerLost);
}

// Answers `weft scale` when the job has the wanted number of ranks.
std::optional<std::string> Supervisor::answer(const std::string& request) {
  if (request == "run") return node_.run_folder.empty() ? "none" : node_.run_folder;
  if (request == "servers") return node_.job.servers == 0 ? "none" : servers_.describe();
  if (request == "stop" || request.starts_with("stop ")) return departures_.answer(request);
  int ranks = 0;
  if (std::sscanf(request.c_str(), "scale %d", &ranks) != 1 || ranks < 1)
    return "this launcher does not know the request \"" + request + "\"";
  if (follower_) return follower_->answer(ranks);
  return answer_scale(ranks);
}

std::optional<std::string> Supervisor::answer_scale(int ranks) {
  if (node_.policy.max_ranks == 0)
    return "the number of ranks of this job is fixed; start it with -n MIN:MAX, "
           "--max-replacements or --min-ranks, on one node";
  const int least = node_.least_ranks();
  if (ranks < least || ranks > node_.policy.max_ranks)
    return counted(ranks, "rank") + ": this job may have " + std::to_string(least) + " to " +
           std::to_string(node_.policy.max_ranks);
  if (!node_.situation.job.usable.has(ranks)) return not_usable(ranks, node_.situation.job.usable);
  if (!node_.situation.trained || node_.situation.stop_sent)
    return "the job does not train yet, or it ends";
  if (node_.size == ranks) {
    node_.situation.job.wanted = {0, ranks};
    return "ok";
  }
  node_.want_ranks(ranks, "");
  if (node_.situation.job.never_joined < kMaxNeverJoined) return std::nullopt;
  node_.situation.job.wanted = {0, node_.size};
  return why_it_keeps(node_.size);
}

Situation Supervisor::situation_of_job() const {
  if (node_.job.nodes == 1) return node_.situation;
  NodeReportsOptions options;
  options.store_host = node_.job.master_addr;
  options.store_port = node_.job.master_port;
  options.prefix =
      "weft/launchers/" + node_.job.run_id + "/" + std::to_string(node_.situation.restarts);
  options.nodes = node_.job.nodes;
  options.node = node_.job.node_rank;
  options.wait = node_.policy.survivor_grace + std::chrono::seconds(5);
  return exchange_reports(node_.situation, options);
}

std::string Supervisor::report(const Situation& whole) const {
  Failure failure;
  failure.situation = whole;
  failure.first_here = node_.job.rank(0) - whole.first_rank;
  failure.count_here = node_.job.local_world;
  failure.stop_signal = departures_.stop_signal();
  if (node_.situation.asked) failure.asked = departures_.why();
  failure.out_of_memory = node_.was_out_of_memory();
  const auto blamed = blame(whole);
  const int local = blamed->rank - failure.first_here;
  if (blamed->how == Blame::How::kFailed && local >= 0 && local < node_.job.local_world) {
    const auto at = static_cast<std::size_t>(local);
    // If the cause is known, lines that were already shown are not repeated.
    const bool was_shown = node_.job.shown[at] && (node_.job.redirects[at] & STDERR_FILENO) == 0;
    if (!was_shown || !node_.situation.ranks[at]->cause)
      failure.last_lines = node_.ranks[at].err.tail();
    failure.log = starter_.log_of(local);
  }
  return failure_report(failure);
}

}  // namespace weft::launch::internal
