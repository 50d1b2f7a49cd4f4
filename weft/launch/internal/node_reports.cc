// Each node writes its report, then waits until all reports are there. At this moment, which all
// nodes see within kLookAgain, it also writes its wall clock. So a reader knows how far the clocks
// differ, and which rank failed first.
#include "weft/launch/internal/node_reports.h"

#include <c10/util/Logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "weft/base/deadline.h"
#include "weft/launch/process.h"

namespace weft::launch::internal {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// Without a failure, node 0's launcher may have ended already, and nobody may need the report.
constexpr auto kToConnect = milliseconds(3000), kToConnectIfAllIsWell = milliseconds(500);
constexpr auto kLookAgain = milliseconds(20);
// c10d's client reads without a deadline, and a store that is stopped never answers. So a process
// asks the store. It gets this time beside its waits.
constexpr auto kSlack = milliseconds(2000);
// Clocks that differ by less count as equal: a busy node sees later that all reports are there.
constexpr auto kClockAccuracy = milliseconds(500);

// Milliseconds from a time of the steady clock to one of the wall clock.
std::int64_t wall_offset() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<milliseconds>(wall - steady).count();
}

milliseconds wall_clock() {
  return std::chrono::duration_cast<milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
}

json to_json(const RankEnd& end, milliseconds clock_error) {
  const auto when = std::chrono::duration_cast<milliseconds>(end.when.time_since_epoch()).count();
  json object = {{"signaled", end.status.signaled},
                 {"value", end.status.value},
                 {"when", when + wall_offset() + clock_error.count()},
                 {"told", end.told}};
  if (end.cause) {
    object["message"] = end.cause->message;
    object["peer"] = end.cause->peer;
    if (end.cause->code) object["code"] = static_cast<int>(*end.cause->code);
  }
  return object;
}

RankEnd end_of(const json& object, milliseconds ahead) {
  RankEnd end;
  end.status = {object.at("signaled").get<bool>(), object.at("value").get<int>()};
  end.when = Time(milliseconds(object.at("when").get<std::int64_t>() - wall_offset()) - ahead);
  end.told = object.at("told").get<bool>();
  if (object.contains("message")) {
    end.cause = Cause{object.at("message").get<std::string>(), {}, object.at("peer").get<int>()};
    if (object.contains("code")) end.cause->code = static_cast<Errc>(object.at("code").get<int>());
  }
  return end;
}

// Waits until the counter `key` has reached `count`. False after the deadline.
bool comes(c10d::Store& store, const std::string& key, int count, Deadline deadline) {
  while (store.add(key, 0) < count) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kLookAgain);
  }
  return true;
}

// An empty situation of all ranks.
Situation nothing_known(const Situation& mine, int nodes) {
  Situation whole = mine;
  whole.first_rank = 0;
  whole.stopped.clear();
  whole.hang.reset();
  whole.ranks.assign(mine.ranks.size() * static_cast<std::size_t>(nodes), std::nullopt);
  return whole;
}

std::string key_of_clock(int node) { return "clock" + std::to_string(node); }

// By how much the clock of the node with this report is ahead of `clock`.
milliseconds ahead_of(milliseconds clock, c10d::Store& store, int node, const Situation& report,
                      Deadline deadline) {
  if (!first_failure(report)) return {};  // it does not wait, and writes no clock
  const std::string key = key_of_clock(node);
  while (!store.check({key})) {
    if (deadline.passed()) return {};
    std::this_thread::sleep_for(kLookAgain);
  }
  const auto ahead = milliseconds(std::stoll(store.get_to_str(key))) - clock;
  return std::chrono::abs(ahead) < kClockAccuracy ? milliseconds() : ahead;
}

// Returns the situation of the job as text. Without a failure on this node: only publishes.
std::string exchange_over(c10d::Store& store, const Situation& mine,
                          const NodeReportsOptions& options) {
  store.set("node" + std::to_string(options.node), to_text(mine, options.clock_error));
  store.add("written", 1);
  if (!first_failure(mine)) return "";
  const auto deadline = Deadline::in(options.wait);
  const bool are_all_there = comes(store, "written", options.nodes, deadline);
  const milliseconds clock = wall_clock() + options.clock_error;
  if (are_all_there) store.set(key_of_clock(options.node), std::to_string(clock.count()));
  Situation whole = nothing_known(mine, options.nodes);
  for (int node = 0; node < options.nodes; ++node) {
    const std::string key = "node" + std::to_string(node);
    if (!store.check({key})) continue;
    const std::string text = store.get_to_str(key);
    Situation report = nothing_known(mine, options.nodes);
    add_text(text, report);
    const auto ahead =
        are_all_there ? ahead_of(clock, store, node, report, deadline) : milliseconds();
    add_text(text, whole, ahead);
  }
  store.add("read", 1);
  // The store ends with node 0's launcher.
  if (options.node == 0) comes(store, "read", options.nodes, deadline);
  return to_text(whole);
}

// Asks the store, and writes the answer to `file`. Returns an exit code.
int ask(const Situation& mine, const NodeReportsOptions& options, milliseconds to_connect,
        int file) {
  FLAGS_caffe2_log_level = 3;  // c10d logs failed connections with stack frames
  c10d::TCPStoreOptions client;
  client.port = static_cast<std::uint16_t>(options.store_port);
  client.isServer = false;
  client.waitWorkers = false;
  client.timeout = to_connect;
  try {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(
        options.prefix, c10::make_intrusive<c10d::TCPStore>(options.store_host, client));
    const std::string whole = exchange_over(*store, mine, options);
    return ::pwrite(file, whole.data(), whole.size(), 0) == std::ssize(whole) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;  // node 0 has ended, or cannot be reached
  }
}

}  // namespace

std::string to_text(const Situation& situation, milliseconds clock_error) {
  json ranks = json::array(), stopped = json::array();
  for (const auto& end : situation.ranks)
    ranks.push_back(end ? to_json(*end, clock_error) : json());
  for (const int rank : situation.stopped) stopped.push_back(rank);
  json object = {{"first_rank", situation.first_rank}, {"ranks", ranks}, {"stopped", stopped}};
  if (situation.hang)
    object["hang"] = {{"rank", situation.hang->rank}, {"why", situation.hang->why}};
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

void add_text(const std::string& text, Situation& whole, milliseconds ahead) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    const int first = object.at("first_rank").get<int>();
    const auto place = [&](int rank) { return static_cast<std::size_t>(first + rank); };
    int rank = 0;
    for (const json& end : object.at("ranks")) {
      if (!end.is_null()) whole.ranks.at(place(rank)) = end_of(end, ahead);
      ++rank;
    }
    for (const json& one : object.at("stopped")) whole.stopped.insert(first + one.get<int>());
    if (object.contains("hang")) {
      const json& hang = object.at("hang");
      const int hung = first + hang.at("rank").get<int>();
      if (hung >= 0 && hung < static_cast<int>(whole.ranks.size()))
        whole.hang = {hung, hang.at("why").get<std::string>()};
    }
  } catch (const std::exception&) {
    // Not a report: ranks of unknown state.
  }
}

Situation exchange_reports(const Situation& mine, const NodeReportsOptions& options) {
  const bool failed = first_failure(mine).has_value();
  const auto to_connect = failed ? kToConnect : kToConnectIfAllIsWell;
  const auto limit = to_connect + (failed ? options.wait : milliseconds(0)) + kSlack;
  const Fd file(::memfd_create("weft-node-reports", MFD_CLOEXEC));
  ProcessOptions asking;
  asking.inherit = {file.get()};
  asking.call = [&] { return ask(mine, options, to_connect, file.get()); };
  try {
    const auto end = file ? Process(asking).wait(Deadline::in(limit)) : std::nullopt;
    if (!failed || !end || !end->ok()) return mine;
  } catch (const Error&) {
    return mine;  // there is no process left for it
  }
  std::string text(static_cast<std::size_t>(::lseek(file.get(), 0, SEEK_END)), '\0');
  if (::pread(file.get(), text.data(), text.size(), 0) != std::ssize(text)) return mine;
  Situation whole = nothing_known(mine, options.nodes);
  add_text(text, whole);
  return whole;
}

}  // namespace weft::launch::internal
