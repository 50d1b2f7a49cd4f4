// All requests that the job goes become one Departure. The first one counts. But a request for the
// whole job replaces one that this node leaves, and any request replaces the stop that a program
// has asked for.
//
//   source                    ranks of this node                 report, on nodes that meet
//   SIGTERM, SIGINT, …        get the same signal                stop
//   weft stop                 get SIGTERM                        stop
//   SIGUSR1, notice           get SIGTERM, or train on           leave, if others can go on
//   a signal to a rank        tell each other                    stop
//   should_stop of a rank     tell each other                    -
//   membership (heed())       end by its grace period
//
// With each source but should_stop, note_departure() sets Situation::grace_end, at which decide()
// kills the ranks.
#include "weft/launch/internal/departures.h"
#include "weft/base/text/numbers.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "weft/base/error.h"
#include "weft/base/text/variables.h"

namespace weft::launch::internal {
namespace {

std::chrono::milliseconds grace_of(const LaunchOptions& options) {
  return options.going.grace.value_or(options.shutdown_timeout);
}

constexpr auto kRequeueLimit = std::chrono::seconds(30);

}  // namespace

Departures::Departures(Node& node)
    : node_(node),
      notices_(node.options.going.notice_command, node.options.going.notice_interval) {}

// SIGUSR1 is a request to go, unless it is to be passed on to the program.
std::vector<int> Departures::signals() const {
  std::vector<int> signals = node_.job.signals;
  if (!passes_on(SIGUSR1)) signals.push_back(SIGUSR1);
  return signals;
}

bool Departures::passes_on(int signal) const {
  return std::find(node_.job.signals.begin(), node_.job.signals.end(), signal) !=
         node_.job.signals.end();
}

void Departures::on_signal(int number, bool others_can_go_on, Time when) {
  Situation& situation = node_.situation;
  if (number == SIGUSR1 && !passes_on(SIGUSR1)) return ask_to_leave("SIGUSR1", others_can_go_on);
  const bool only_forwarded = number == SIGUSR1 || number == SIGUSR2;
  // Ranks that were asked to end save a checkpoint, and the same signal again would kill them.
  if (only_forwarded) return node_.send(number);
  if (situation.stop_signals > 0 && when - counted_ < kOneRequest) return;
  counted_ = when;
  if (!situation.asked || situation.stop_signals > 0) node_.ask_to_stop(number);
  note_departure(signal_name(number), false, {});
  if (stop_signal_ == 0) stop_signal_ = number;
  ++situation.stop_signals;
  if (!situation.stop_sent) situation.stop_sent = when;
}

// The first request counts.
void Departures::note_departure(const std::string& why, bool requeues, Grace grace) {
  if (job_goes() && !departure_->by_program) return;
  leaving_ = false;
  departure_ = Departure{why, std::chrono::steady_clock::now(),
                         grace.value_or(grace_of(node_.options)), requeues};
  node_.situation.grace_end = end_of_grace(*departure_);
}

void Departures::on_stop_of(int local, bool by_signal) {
  const std::string rank = "rank " + std::to_string(node_.job.rank(local));
  // Node::send() spares it from now on: another SIGTERM would kill a rank that saves.
  node_.ranks[static_cast<std::size_t>(local)].stops = true;
  if (by_signal) return note_departure("a signal to " + rank, false, {});
  if (departure_) return;
  departure_ = Departure{.why = rank + " asked to stop",
                         .since = std::chrono::steady_clock::now(),
                         .grace = grace_of(node_.options),
                         .by_program = true};
}

// The signal was to the lost rank alone, and the others need not have agreed with it to stop. The
// lost rank is still replaced (no stop_sent), since the others may need it to save. On nodes that
// meet, the membership tells all ranks.
void Departures::on_end_of(int local) {
  Situation& situation = node_.situation;
  const auto at = static_cast<std::size_t>(local);
  const bool by_signal = job_goes() && !departure_->by_program;
  if (!node_.ranks[at].stops || !by_signal || situation.asked || situation.stop_sent ||
      situation.followed || phase_of(*situation.ranks[at]) != RankPhase::kLost)
    return;
  situation.asked = true;
  node_.ask_to_stop(SIGTERM);
}

// Lets the ranks save a checkpoint and end.
void Departures::ask_to_go(const std::string& why, bool requeues, Grace grace) {
  if (job_goes() && !departure_->by_program) return;
  node_.note(why + ": the ranks shall save a checkpoint and end");
  note_departure(why, requeues, grace);
  node_.situation.asked = true;
  if (!node_.situation.stop_sent) node_.situation.stop_sent = departure_->since;
  node_.ask_to_stop(SIGTERM);
}

// A request that concerns this machine alone. Of nodes that meet, the others go on without it.
void Departures::ask_to_leave(const std::string& why, bool others_can_go_on) {
  // With --requeue, the whole job ends here, and the batch system starts it again.
  if (!others_can_go_on || node_.options.going.requeue) return ask_to_go(why, true, {});
  if (departure_ && !departure_->by_program) return;
  node_.note(why + ": this node leaves, if the others can go on without it; else the job ends");
  note_departure(why, true, {});
  leaving_ = true;
}

void Departures::report_to(NodeReport& report, int node) const {
  if (!departure_ || departure_->by_program) return;
  StopRequest& request = leaving_ ? report.leave : report.stop;
  if (!leaving_) report.leave = {};
  if (!request.why.empty()) return;
  const bool is_signal = departure_->why.starts_with("SIG");
  request = {departure_->why + (is_signal ? " to the launcher of node " : ", on node ") +
                 std::to_string(node),
             stop_code(), departure_->grace.count()};
}

void Departures::heed(const StopRequest& stop) {
  leaving_ = false;
  node_.situation.asked = true;
  if (departure_ && !departure_->by_program) return;
  note_departure(stop.why, false, std::chrono::milliseconds(stop.grace_ms));
  departure_->by_membership = true;
}

// As of ranks that save a checkpoint and end: 130 after Ctrl-C, else 143.
int Departures::stop_code() const { return 128 + (stop_signal_ == SIGINT ? SIGINT : SIGTERM); }

int Departures::end_of_leaving() {
  const std::string text = "this node has left the job, which goes on without it";
  node_.note(text + " (" + why() + ")");
  answer_ = "ok " + text;
  return 128 + SIGTERM;
}

std::optional<std::string> Departures::answer(const std::string& request) {
  constexpr std::size_t kVerb = 4;
  Grace grace;
  if (request.size() > kVerb) {
    const double seconds = parse_number<double>(request.substr(kVerb + 1)).value_or(0);
    constexpr double kMost = 7 * 86400;
    if (!(seconds > 0) || seconds > kMost)
      return "this launcher does not know the request \"" + request + "\"";
    grace = std::chrono::milliseconds(std::llround(seconds * 1e3));
  }
  if (!answer_) ask_to_go("weft stop", false, grace);
  return answer_;
}

void Departures::look(bool others_can_go_on) {
  const auto result = notices_.look(std::chrono::steady_clock::now());
  if (!result) return;
  if (result->status.ok()) return ask_to_leave("a notice that this machine goes", others_can_go_on);
  const bool broken = result->timed_out || result->status.signaled || result->status.value >= 126;
  if (!broken || is_broken_) return;
  is_broken_ = true;
  node_.note("--notice-command: " + result->describe() +
             "; it is tried again, and this is said once");
}

void Departures::on_checkpoint(const std::string& folder) {
  newest_checkpoint_ = folder;
  saved_ = std::chrono::steady_clock::now();
}

void Departures::say_how_it_went() {
  if (!departure_) return;
  Time ended{};
  for (const auto& end : node_.situation.ranks) ended = end ? std::max(ended, end->when) : ended;
  const bool heeded = std::any_of(node_.ranks.begin(), node_.ranks.end(),
                                  [](const RankProcess& rank) { return rank.stops; });
  const std::string line =
      line_of({.asked = *departure_,
               .trained = node_.situation.trained || !newest_checkpoint_.empty(),
               .killed = node_.situation.kill_sent.has_value(),
               .newest = newest_checkpoint_,
               .saved = saved_,
               .ended = ended,
               .heeded = heeded});
  if (!line.empty()) node_.note(line);
  answer_ = node_.situation.kill_sent ? line : "ok" + (line.empty() ? "" : " " + line);
}

std::string Departures::final_answer(int code) const {
  return answer_.value_or("ok the job has ended by itself, with exit code " + std::to_string(code));
}

void Departures::requeue(int node) const {
  if (!node_.options.going.requeue || !departure_ || !departure_->requeues) return;
  if (node_.job.node_rank != node) return;
  const std::string job = variable("SLURM_JOB_ID");
  const std::string command = "scontrol requeue " + job;
  try {
    ProcessOptions options;
    options.argv = {"scontrol", "requeue", job};
    Process process(options);
    const auto status = process.wait(Deadline::in(kRequeueLimit));
    node_.note(command + ": " +
               (!status        ? "no answer within 30 s; the job is not requeued"
                : status->ok() ? "the job is requeued"
                               : status->describe() + "; the job is not requeued"));
  } catch (const Error& error) {
    node_.note(command + ": " + error.message() + "; the job is not requeued");
  }
}

}  // namespace weft::launch::internal
