// A worker of a simulated chain: in each step, it pushes +1 to its own element and to its own row,
// and a row of a table that evicts. It pulls, and checks what it sees.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/ps/testing/commands.h"
#include "weft/ps/testing/simulated_chain.h"

namespace weft::ps::testing {

class SimulatedWorker {
 public:
  using Time = SimulatedChain::Time;
  struct Settings {
    std::uint32_t worker = 0;
    std::uint32_t workers = 1;
    int staleness = kAsync;
    int pushes = 10;
    int dies_after = -1;  // pushes; below 0: it lives
    Time compute = 1000;  // between a pull and a push
    bool pulls_deltas = false;
  };

  // `may_push`: all workers have joined.
  SimulatedWorker(SimulatedChain& chain, const Settings& settings, std::function<bool()> may_push)
      : chain_(chain),
        settings_(settings),
        may_push_(std::move(may_push)),
        commands_(1000 + settings.worker, settings.worker),
        seen_(settings.workers),
        seen_rows_(settings.workers),
        has_(settings.workers) {
    Options options;
    options.rule.reset();
    options.staleness = settings.staleness;
    options.pull_deltas = settings.pulls_deltas;
    give(commands_.define(options, {{"w", std::vector<float>(settings.workers)}},
                          {{.name = "counts", .row_floats = 2, .rule = Add{}},
                           {.name = "young", .row_floats = 1, .evict_after = 2}}));
    give(commands_.join());
    resend();
  }

  bool has_joined() const { return has_joined_; }
  bool is_over() const { return is_dead_ || is_done_; }
  bool is_dead() const { return is_dead_; }
  std::uint32_t worker() const { return settings_.worker; }
  std::uint64_t client() const { return commands_.client(); }
  int staleness() const { return settings_.staleness; }
  int issued() const { return issued_; }
  int acknowledged() const { return acknowledged_; }
  int acknowledged_rows() const { return acknowledged_rows_; }
  static std::uint64_t row_of(std::size_t worker) { return 77 * worker; }
  std::string state() const {
    return "worker " + std::to_string(settings_.worker) + ": " + std::to_string(acknowledged_) +
           " of " + std::to_string(issued_) + " pushes and " + std::to_string(acknowledged_rows_) +
           " pushes of rows acknowledged, " + std::to_string(outstanding_.size()) + " outstanding";
  }

 private:
  struct Sent {
    internal::Request request;
    std::string payload;
  };

  void give(const internal::Request& request) {
    Sent sent{request, std::string(request.payload)};
    sent.request.payload = {};
    outstanding_.push_back(std::move(sent));
    transmit(outstanding_.back());
  }

  void transmit(const Sent& sent) {
    if (view_.members.empty()) return;
    internal::Request request = sent.request;
    request.view = view_.number;
    request.payload = sent.payload;
    chain_.request(view_.members[0].server, settings_.worker, encode(request),
                   [this](const internal::Answer& answer) { take(answer); });
  }

  // Asks the directory, and sends everything again.
  void resend() {
    if (is_over()) return;
    view_ = chain_.view();
    for (const Sent& sent : outstanding_) transmit(sent);
    chain_.after(100'000, [this] { resend(); });
  }

  void take(const internal::Answer& answer) {
    if (is_dead_) return;
    if (answer.outcome == internal::Outcome::kElsewhere) return;
    const auto found = std::find_if(outstanding_.begin(), outstanding_.end(),
                                    [&](const Sent& one) { return one.request.id == answer.id; });
    const auto known = answers_.find(answer.id);
    if (known != answers_.end() && internal::is_command(known->second.op)) {
      if (known->second.clock != answer.clock || known->second.version != answer.version)
        throw Violation("a repeated command got another answer");
    }
    if (found == outstanding_.end()) return;
    if (answer.outcome == internal::Outcome::kRefused) throw Violation("refused: " + answer.text);
    const internal::Request request = found->request;
    outstanding_.erase(found);
    answers_[answer.id] = {request.op, answer.clock, answer.version};
    if (request.op == internal::Op::kPush) ++acknowledged_;
    if (request.op == internal::Op::kPushRows && request.keys[0] == 0) ++acknowledged_rows_;
    if (request.op == internal::Op::kPullDelta) {
      const std::vector<float> sent = floats_of(answer.payload);
      if (sent.size() != has_.size()) throw Violation("a pull has the wrong size");
      for (std::size_t i = 0; i < sent.size(); ++i)
        has_[i] = request.version != 0 ? sent[i] : has_[i] + sent[i];
      check(has_, "elements", seen_);
    }
    if (request.op == internal::Op::kPull) check(floats_of(answer.payload), "elements", seen_);
    if (request.op == internal::Op::kPullRows) check_rows(floats_of(answer.payload));
    if (outstanding_.empty()) chain_.after(settings_.compute, [this] { work(); });
  }

  void work() {
    if (is_over() || !outstanding_.empty()) return;
    has_joined_ = true;
    if (!may_push_()) return chain_.after(settings_.compute, [this] { work(); });
    if (issued_ == settings_.dies_after) {
      is_dead_ = true;
      return;
    }
    if (issued_ == settings_.pushes) {
      if (has_left_) is_done_ = true;
      if (!std::exchange(has_left_, true)) give(commands_.leave());
      return;
    }
    // With no bound, some pushes go out together.
    const int together =
        settings_.staleness < 0 ? 1 + static_cast<int>(chain_.random().below(3)) : 1;
    for (int i = 0; i < together && issued_ < settings_.pushes && issued_ != settings_.dies_after;
         ++i) {
      std::vector<float> delta(settings_.workers);
      delta[settings_.worker] = 1;
      ++issued_;
      give(commands_.push_rows(0, {row_of(settings_.worker)}, {1, 1}));
      // Some of these rows are pushed again before they are evicted.
      give(commands_.push_rows(1, {chain_.random().below(40), 1000 + chain_.random().below(1000)},
                               {0.5f, 1}));
      give(commands_.push(delta));
    }
    give(settings_.pulls_deltas ? commands_.pull_delta(!std::exchange(has_pulled_, true))
                                : commands_.pull());
    std::vector<std::uint64_t> rows;
    for (std::size_t worker = 0; worker < settings_.workers; ++worker)
      rows.push_back(row_of(worker));
    give(commands_.pull_rows(0, rows));
  }

  void check_rows(const std::vector<float>& rows) {
    std::vector<float> first;
    for (std::size_t i = 0; i + 1 < rows.size(); i += 2) {
      if (rows[i] != rows[i + 1]) throw Violation("a row is torn");
      first.push_back(rows[i]);
    }
    check(first, "rows", seen_rows_);
  }

  void check(const std::vector<float>& values, const std::string& what, std::vector<float>& seen) {
    if (values.size() != seen.size()) throw Violation("a pull has the wrong size");
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string where = "worker " + std::to_string(settings_.worker) + " pulls " + what +
                                ", " + std::to_string(values[i]) + " of worker " +
                                std::to_string(i);
      if (values[i] < seen[i]) throw Violation(where + " after " + std::to_string(seen[i]));
    }
    if (values[settings_.worker] != static_cast<float>(issued_))
      throw Violation("worker " + std::to_string(settings_.worker) + " pulls " +
                      std::to_string(values[settings_.worker]) + " of its own pushes (" + what +
                      ") after " + std::to_string(issued_));
    if (settings_.staleness >= 0) check_bound(values);
    seen = values;
  }

  // All workers make as many pushes, unless they die. So each has made at least as many as this
  // one, less the bound.
  void check_bound(const std::vector<float>& values) const {
    const auto least = static_cast<float>(issued_ - settings_.staleness);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::find(mortal_.begin(), mortal_.end(), i) != mortal_.end()) continue;
      if (values[i] < least)
        throw Violation("a pull is more stale than the bound: " + std::to_string(values[i]) +
                        " pushes of worker " + std::to_string(i) + " where " +
                        std::to_string(least) + " are due");
    }
  }

 public:
  // Workers that may die, and whose pushes need not come.
  void set_mortal(std::vector<std::size_t> workers) { mortal_ = std::move(workers); }

 private:
  struct Seen {
    internal::Op op;
    std::int64_t clock;
    std::uint64_t version;
  };

  SimulatedChain& chain_;
  const Settings settings_;
  const std::function<bool()> may_push_;
  Commands commands_;
  std::deque<Sent> outstanding_;
  std::map<std::uint64_t, Seen> answers_;  // by id
  View view_;
  int issued_ = 0, acknowledged_ = 0, acknowledged_rows_ = 0;
  std::vector<float> seen_, seen_rows_;
  std::vector<float> has_;  // by differences
  bool has_pulled_ = false;
  std::vector<std::size_t> mortal_;
  bool has_joined_ = false, is_dead_ = false, is_done_ = false, has_left_ = false;
};

}  // namespace weft::ps::testing
