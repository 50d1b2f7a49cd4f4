// A step of a worker has any number of pushes of rows, and ends with one push of tensors. So there
// are two maps:
//
//   rounds_[s][w]             worker w has ended step s
//   row_rounds_[s][w] alone   w is still in step s: its rows wait, or are dropped with it
//
// Order of sums. The maps are ordered by worker number, and the rows of a worker by arrival, which
// is the same on all copies of the shard. So all copies add in the same order, and get the same
// bits. The rows of a step have been made when they were pushed, so that applying a step does not
// lack memory for them.
#include "weft/ps/internal/rounds.h"

#include <cstring>
#include <utility>

#include "weft/base/log.h"

namespace weft::ps::internal {
namespace {

std::uint64_t bytes_of(const TensorPush& push) { return sizeof(float) * push.values.size(); }

std::uint64_t bytes_of(const RowPush& push) {
  return sizeof(std::uint64_t) * push.keys.size() + sizeof(float) * push.values.size();
}

void put_rows(ByteWriter& out, const RowPush& push) {
  out.put(push.table);
  out.put(push.lr);
  out.put(static_cast<std::uint64_t>(push.keys.size()));
  for (const std::uint64_t key : push.keys) out.put(key);
  put_floats(out, push.values);
}

RowPush take_rows(ByteReader& in) {
  RowPush push;
  push.table = in.take<std::uint32_t>();
  push.lr = in.take<double>();
  const auto count = in.take<std::uint64_t>();
  const std::string_view keys = in.take_view(count, sizeof(std::uint64_t));
  push.keys.resize(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(push.keys.data(), keys.data(), keys.size());
  push.values = take_floats(in);
  return push;
}

}  // namespace

bool Rounds::has(std::int64_t step, std::uint32_t worker) const {
  const auto round = rounds_.find(step);
  return round != rounds_.end() && round->second.contains(worker);
}

Answer Rounds::check_lr(const Request& push, std::int64_t step, double rule) const {
  const auto round = rounds_.find(step);
  if (round == rounds_.end()) return {};
  const auto rate = [&](double lr) { return lr >= 0 ? lr : rule; };
  for (const auto& [other, waiting] : round->second) {
    if (rate(waiting.lr) == rate(push.lr)) continue;
    return invalid("worker " + std::to_string(push.worker) + " pushed with a learning rate of " +
                   json_number(rate(push.lr)) + " and worker " + std::to_string(other) + " of " +
                   json_number(rate(waiting.lr)) +
                   " for the same step; all workers of a step use one. Nothing was changed");
  }
  return {};
}

Answer Rounds::check_rows_lr(const Request& push, std::int64_t step,
                             const std::string& table) const {
  const auto round = row_rounds_.find(step);
  if (round == row_rounds_.end()) return {};
  const auto said = [](double lr) { return lr < 0 ? "that of the rule" : json_number(lr); };
  for (const auto& [other, pushes] : round->second) {
    for (const RowPush& before : pushes) {
      if (before.table != push.keys[0] || said(before.lr) == said(push.lr)) continue;
      return invalid("worker " + std::to_string(push.worker) + " pushed rows of table " + table +
                     " with the learning rate " + said(push.lr) + " and worker " +
                     std::to_string(other) + " with " + said(before.lr) +
                     " in the same step; all pushes of a step use one. Nothing was changed");
    }
  }
  return {};
}

void Rounds::add(std::int64_t step, std::uint32_t worker, TensorPush push) {
  bytes_ += bytes_of(push);
  rounds_[step][worker] = std::move(push);
}

void Rounds::add_rows(std::int64_t step, std::uint32_t worker, RowPush push) {
  bytes_ += bytes_of(push);
  row_rounds_[step][worker].push_back(std::move(push));
}

void Rounds::drop_unfinished_rows(std::uint32_t worker) {
  for (auto round = row_rounds_.begin(); round != row_rounds_.end();) {
    const auto rows = round->second.find(worker);
    if (!has(round->first, worker) && rows != round->second.end()) {
      for (const RowPush& push : rows->second) bytes_ -= bytes_of(push);
      round->second.erase(rows);
    }
    round = round->second.empty() ? row_rounds_.erase(round) : std::next(round);
  }
}

std::size_t Rounds::apply_first(Tensors& tensors, Tables& tables) {
  const auto& pushes = rounds_.begin()->second;
  const std::size_t count = pushes.size();
  apply_rows(first(), count, tables);
  tensors.update(pushes);
  for (const auto& [worker, push] : pushes) bytes_ -= bytes_of(push);
  rounds_.erase(rounds_.begin());
  return count;
}

// Updates each row of a step once, in the order of tables, workers and pushes. The update is the
// mean over the workers that made the step; one that did not push the row counts as zero. Deltas
// are added up.
void Rounds::apply_rows(std::int64_t step, std::size_t workers, Tables& tables) {
  const auto round = row_rounds_.find(step);
  if (round == row_rounds_.end()) return;
  for (std::uint32_t table = 0; table < tables.size(); ++table) {
    RowPush all{table, -1, {}, {}};
    for (const auto& [worker, pushes] : round->second) {
      for (const RowPush& push : pushes) {
        if (push.table != table) continue;
        // check_rows_lr() has made sure that the others have the same.
        if (all.keys.empty()) all.lr = push.lr;
        all.keys.insert(all.keys.end(), push.keys.begin(), push.keys.end());
        all.values.insert(all.values.end(), push.values.begin(), push.values.end());
      }
    }
    if (all.keys.empty()) continue;
    const bool adds = std::holds_alternative<Add>(tables.spec(table).rule);
    const float share = adds ? 1.0f : 1.0f / static_cast<float>(workers);
    if (share != 1.0f)
      for (float& value : all.values) value *= share;
    tables.push(table, all.keys, all.values, all.lr);
  }
  for (const auto& [worker, pushes] : round->second)
    for (const RowPush& push : pushes) bytes_ -= bytes_of(push);
  row_rounds_.erase(round);
}

void Rounds::put(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(rounds_.size()));
  for (const auto& [clock, round] : rounds_) {
    out.put(clock);
    out.put(static_cast<std::uint32_t>(round.size()));
    for (const auto& [worker, push] : round) {
      out.put(worker);
      out.put(push.lr);
      out.put(static_cast<std::uint32_t>(push.keys.size()));
      for (const std::uint32_t key : push.keys) out.put(key);
      put_floats(out, push.values);
    }
  }
  out.put(static_cast<std::uint32_t>(row_rounds_.size()));
  for (const auto& [clock, round] : row_rounds_) {
    out.put(clock);
    out.put(static_cast<std::uint32_t>(round.size()));
    for (const auto& [worker, pushes] : round) {
      out.put(worker);
      out.put(static_cast<std::uint32_t>(pushes.size()));
      for (const RowPush& push : pushes) put_rows(out, push);
    }
  }
}

Rounds Rounds::taken(ByteReader& in) {
  Rounds taken;
  for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
    auto& round = taken.rounds_[in.take<std::int64_t>()];
    for (std::uint32_t pushes = in.take<std::uint32_t>(); pushes > 0; --pushes) {
      TensorPush& push = round[in.take<std::uint32_t>()];
      push.lr = in.take<double>();
      push.keys.resize(in.take_count(sizeof(std::uint32_t)));
      for (std::uint32_t& key : push.keys) key = in.take<std::uint32_t>();
      push.values = take_floats(in);
      taken.bytes_ += bytes_of(push);
    }
  }
  for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
    auto& round = taken.row_rounds_[in.take<std::int64_t>()];
    for (std::uint32_t workers = in.take<std::uint32_t>(); workers > 0; --workers) {
      auto& pushes = round[in.take<std::uint32_t>()];
      for (std::uint32_t count = in.take<std::uint32_t>(); count > 0; --count) {
        pushes.push_back(take_rows(in));
        taken.bytes_ += bytes_of(pushes.back());
      }
    }
  }
  return taken;
}

bool Rounds::fits(const Tensors& tensors, const Tables& tables) const {
  bool fits = true;
  for (const auto& [step, round] : rounds_) {
    fits = fits && !round.empty();
    for (const auto& [worker, push] : round) fits = fits && tensors.has(push);
  }
  for (const auto& [step, round] : row_rounds_) {
    for (const auto& [worker, pushes] : round) {
      for (const RowPush& push : pushes) {
        if (push.table >= tables.size()) return false;
        const auto width = static_cast<std::size_t>(tables.spec(push.table).row_floats);
        fits = fits && push.values.size() / width == push.keys.size() &&
               push.values.size() % width == 0;
      }
    }
  }
  return fits;
}

}  // namespace weft::ps::internal
