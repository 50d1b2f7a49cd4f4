#include "weft/observe/position/table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "weft/base/log.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"

namespace weft::observe {

using nlohmann::ordered_json;

namespace {

// Smaller is shown first.
auto order_of(const Operation& operation) {
  const int kind = operation.waits() && operation.peer >= 0 ? 0
                   : operation.waits()                      ? 1
                   : operation.runs()                       ? 2
                                                            : 3;
  return std::make_tuple(kind, operation.waits() ? operation.waits_since : 0);
}

double seconds_between(std::int64_t since, std::int64_t now) {
  return since > 0 ? std::max(0.0, static_cast<double>(now - since) * 1e-9) : 0;
}

// Since when the rank is where it is: in its wait, else in its activity.
double seconds_in(const RankView& view, std::int64_t now) {
  return seconds_between(view.operation.waits() ? view.operation.waits_since : view.standing.since,
                         now);
}

constexpr const char* kEnded = "has ended";

std::string in_seconds(double seconds) { return formatted("%.1f s", seconds); }

std::vector<std::string> row_of(const RankView& view, std::int64_t now) {
  std::vector<std::string> row{std::to_string(view.rank)};
  row.push_back(view.standing.step > 0 ? std::to_string(view.standing.step) : "-");
  if (view.ended || view.pid == 0) {
    const char* const state = view.ended ? kEnded : "has not started weft";
    row.insert(row.end(), {"-", state, "-", "-", "-"});
    return row;
  }
  const bool runs = view.operation.runs(), waits = view.operation.waits();
  row.emplace_back(to_string(view.standing.activity));
  row.push_back(view.thread ? to_string(*view.thread) : "-");
  row.push_back(view.operation.name.empty() ? "-"
                                            : (runs ? "" : "after ") + to_string(view.operation));
  row.push_back(!waits                     ? "-"
                : view.operation.peer >= 0 ? "rank " + std::to_string(view.operation.peer)
                                           : "unknown");
  row.push_back(in_seconds(seconds_in(view, now)));
  return row;
}

ordered_json json_of(const Operation& operation, std::int64_t now) {
  ordered_json json = {{"name", operation.name.str()},
                       {"group", operation.group.str()},
                       {"number", operation.number},
                       {"bytes", operation.bytes},
                       {"runs", operation.runs()}};
  if (operation.waits()) {
    json["waits_for"] = operation.peer >= 0 ? ordered_json(operation.peer) : ordered_json();
    json["waits_s"] = seconds_between(operation.waits_since, now);
  }
  return json;
}

ordered_json json_of(const RankView& view, std::int64_t now) {
  ordered_json json = {{"rank", view.rank}, {"pid", view.pid}};
  if (view.ended) {
    json["process"] = kEnded;
    return json;
  }
  if (view.pid > 0) {
    json["step"] = view.standing.step;
    json["phase"] = to_string(view.standing.activity);
    json["phase_s"] = seconds_between(view.standing.since, now);
  }
  if (view.thread) {
    json["process"] = to_string(*view.thread);
    json["cpu_s"] = static_cast<double>(view.thread->cpu.count()) * 1e-9;
  }
  if (!view.operation.name.empty()) json["operation"] = json_of(view.operation, now);
  return json;
}

}  // namespace

std::vector<RankView> views_of(const RankPage& page) {
  std::vector<RankView> views;
  for (int local = 0; local < page.ranks(); ++local) {
    const RankRecord& record = page.record(local);
    RankView view;
    view.heartbeat = record.heartbeat();
    view.standing = record.standing.read();
    view.rank = view.standing.rank;
    view.pid = view.standing.pid;
    if (view.rank < 0) continue;
    for (const OperationSlot& slot : record.slots) {
      const Operation operation = slot.operation.read();
      if (operation.name.empty()) continue;
      if (view.operation.name.empty() || order_of(operation) < order_of(view.operation))
        view.operation = operation;
    }
    views.push_back(view);
  }
  return views;
}

void read_thread(RankView& view) {
  if (view.pid <= 0) return;
  view.thread = read_thread_state(view.pid, view.standing.thread);
  // A program may go on after the thread that trained.
  const auto is_gone = [](const ThreadState& state) {
    return state.kind == ThreadState::Kind::kGone;
  };
  view.ended = is_gone(*view.thread) && is_gone(read_thread_state(view.pid, view.pid));
}

std::string to_string(const Operation& operation) {
  if (operation.name.empty()) return "-";
  std::string text = operation.name.str();
  if (operation.number > 0) text += " " + std::to_string(operation.number);
  if (!operation.group.empty()) text += " of " + operation.group.str();
  if (operation.bytes > 0) text += " (" + format_bytes(operation.bytes) + ")";
  return text;
}

std::string table_of(std::span<const RankView> views, std::int64_t now) {
  std::vector<std::vector<std::string>> rows{
      {"rank", "step", "phase", "process", "operation", "waits for", "since"}};
  for (const RankView& view : views) rows.push_back(row_of(view, now));
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], num_characters(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool is_last = c + 1 == row.size();
      text += row[c] + (is_last ? "\n" : std::string(widths[c] + 2 - num_characters(row[c]), ' '));
    }
  }
  return text;
}

ordered_json json_of(std::span<const RankView> views, std::int64_t now) {
  ordered_json ranks = ordered_json::array();
  for (const RankView& view : views) ranks.push_back(json_of(view, now));
  return {{"ranks", ranks}};
}

}  // namespace weft::observe
