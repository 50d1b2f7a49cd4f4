#include "weft/observe/trace.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/json/json_writer.h"
#include "weft/base/text/numbers.h"

namespace weft::observe {
namespace {

thread_local Trace* current_trace = nullptr;
thread_local int current_line = 0;

// Converts nanoseconds to the format's microseconds, with three decimals.
std::string microseconds(std::int64_t ns) {
  return formatted("%.3f", static_cast<double>(ns) / 1e3);
}

// Appends an event that names the process, or the thread of this line.
void append_name(std::string& events, const std::string& name, int rank,
                 std::optional<std::size_t> line = {}) {
  JsonWriter json(events);
  json.begin_object().field("ph", "M").field("name", line ? "thread_name" : "process_name");
  json.field("pid", rank);
  if (line) json.field("tid", *line);
  json.key("args").begin_object().field("name", name).end_object().end_object();
}

void append_span(std::string& events, const Span& span, const TraceTarget& target) {
  JsonWriter json(events);
  json.begin_object().field("ph", "X").field("name", span.name).field("cat", span.category);
  json.field("pid", target.rank).field("tid", span.thread);
  json.key("ts").raw(microseconds(span.begin + target.offset - target.origin));
  json.key("dur").raw(microseconds(span.end - span.begin));
  if (span.bytes >= 0) json.key("args").begin_object().field("bytes", span.bytes).end_object();
  json.end_object();
}

using Interval = std::pair<std::int64_t, std::int64_t>;

// The union of the category's spans, as disjoint intervals in order.
std::vector<Interval> cover(const std::vector<Span>& spans, const std::string& category) {
  std::vector<Interval> all;
  for (const auto& span : spans) {
    if (span.category == category) all.emplace_back(span.begin, span.end);
  }
  std::sort(all.begin(), all.end());
  std::vector<Interval> merged;
  for (const auto& one : all) {
    if (!merged.empty() && one.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, one.second);
    } else {
      merged.push_back(one);
    }
  }
  return merged;
}

std::int64_t overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<std::int64_t>(
        0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    (a[i].second < b[j].second ? i : j) += 1;
  }
  return sum;
}

}  // namespace

std::int64_t trace_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Trace::add(Span span) {
  const std::lock_guard lock(mutex_);
  recorded_.spans.push_back(std::move(span));
}

Trace::Recorded Trace::take() {
  const std::lock_guard lock(mutex_);
  Recorded taken{std::exchange(recorded_.spans, {}), recorded_.threads};
  return taken;
}

int Trace::line(const char* thread) {
  const std::lock_guard lock(mutex_);
  auto& names = recorded_.threads;
  const auto found = std::find(names.begin(), names.end(), thread);
  if (found != names.end()) return static_cast<int>(found - names.begin());
  names.emplace_back(thread);
  return static_cast<int>(names.size()) - 1;
}

Trace* Trace::current() noexcept { return current_trace; }

std::weak_ptr<Trace> Trace::current_for_others() noexcept {
  return current_trace == nullptr ? std::weak_ptr<Trace>() : current_trace->self_;
}

Trace::Use::Use(Trace* trace, const char* thread)
    : outer_(current_trace), outer_thread_(current_line) {
  current_trace = trace;
  if (trace != nullptr) current_line = trace->line(thread);
}

Trace::Use::~Use() {
  current_trace = outer_;
  current_line = outer_thread_;
}

void TraceScope::begin(const char* category, const char* name, std::int64_t bytes) {
  span_ = {category, name, current_line, trace_now(), 0, bytes};
}

void TraceScope::end() {
  span_.end = trace_now();
  trace_->add(std::move(span_));
}

std::int64_t clock_offset(const std::vector<ClockSample>& samples) {
  WEFT_REQUIRE(!samples.empty(), "a clock offset needs at least one exchange");
  const auto best = std::min_element(
      samples.begin(), samples.end(),
      [](const auto& a, const auto& b) { return a.answered - a.asked < b.answered - b.asked; });
  return best->theirs - (best->asked + (best->answered - best->asked) / 2);
}

std::string trace_events(const Trace::Recorded& recorded, const TraceTarget& target) {
  std::string name = "rank " + std::to_string(target.rank);
  if (!target.label.empty()) name += " (" + target.label + ")";
  std::string events;
  append_name(events, name, target.rank);
  for (std::size_t line = 0; line < recorded.threads.size(); ++line) {
    events += ",\n";
    append_name(events, recorded.threads[line], target.rank, line);
  }
  for (const auto& span : recorded.spans) {
    events += ",\n";
    append_span(events, span, target);
  }
  return events;
}

std::string chrome_trace(const std::vector<std::string>& events_of_ranks) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (std::size_t i = 0; i < events_of_ranks.size(); ++i)
    text += (i > 0 ? ",\n" : "") + events_of_ranks[i];
  return text + "\n]}\n";
}

std::int64_t busy(const std::vector<Span>& spans, const std::string& category) {
  return busy_in_both(spans, category, category);
}

std::int64_t busy_in_both(const std::vector<Span>& spans, const std::string& category,
                          const std::string& other) {
  return overlap(cover(spans, category), cover(spans, other));
}

}  // namespace weft::observe
