// The state of a shard as bytes.
#include <algorithm>
#include <cstring>

#include "weft/net/stream/bytes.h"
#include "weft/ps/internal/shard.h"

namespace weft::ps::internal {
namespace {

using net::internal::ByteReader;
using net::internal::ByteWriter;

constexpr std::uint32_t kStateVersion = 2;

void put_floats(ByteWriter& out, const std::vector<float>& values) {
  out.put(static_cast<std::uint64_t>(values.size()));
  if (!values.empty())
    out.put_bytes({reinterpret_cast<const char*>(values.data()), sizeof(float) * values.size()});
}

std::vector<float> take_floats(ByteReader& in) {
  const auto count = in.take<std::uint64_t>();
  const std::string_view bytes = in.take_view(count, sizeof(float));
  std::vector<float> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
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

std::string Shard::save() {
  ByteWriter out;
  const auto put = [&](const std::string& piece) {
    out.put<std::uint64_t>(piece.size());
    out.put_bytes(piece);
  };
  put(begin_save());
  while (const auto rows = next_rows()) put(*rows);
  return out.take();
}

std::string Shard::begin_save() {
  ByteWriter out;
  out.put(kStateVersion);
  out.put_text(encode_options(options_));
  out.put(static_cast<std::uint32_t>(slots_.size()));
  for (const Slot& slot : slots_) {
    out.put_text(slot.name);
    out.put(slot.first);
    out.put(slot.count);
    out.put(slot.steps);
  }
  put_floats(out, values_);
  for (const auto& state : states_) put_floats(out, state);
  put_floats(out, mean_square_);
  out.put(version_);
  out.put_bytes(tables_.begin_pieces());
  return out.take();
}

Answer Shard::load(const Request& command) {
  const auto refuse = [](const std::string& text) {
    return invalid("the saved state cannot be loaded: " + text);
  };
  if (!workers().empty()) return refuse("workers count; load it before the first one joins");
  try {
    ByteReader all(command.payload);
    const std::string_view head = all.take_view(all.take<std::uint64_t>(), 1);
    std::vector<std::string_view> pieces;
    while (all.left() > 0) pieces.push_back(all.take_view(all.take<std::uint64_t>(), 1));
    ByteReader in(head);
    if (in.take<std::uint32_t>() != kStateVersion) return refuse("it has another version");
    // The learning rate and the mode may have changed, but the arrays must be the same.
    const Options saved = decode_options(in.take_text());
    const bool same_rule =
        saved.rule.has_value() == options_.rule.has_value() &&
        (!saved.rule || (saved.rule->index() == options_.rule->index() &&
                         optim::state_names(*saved.rule) == optim::state_names(*options_.rule)));
    if (!same_rule || saved.adaptive_compensation != options_.adaptive_compensation)
      return refuse("it is that of another update rule");
    std::vector<Slot> slots = slots_;
    if (in.take_count(2 * sizeof(std::int64_t)) != slots.size())
      return refuse("it has another number of tensors in this shard");
    for (Slot& slot : slots) {
      const std::string_view name = in.take_text();
      const auto first = in.take<std::int64_t>(), count = in.take<std::int64_t>();
      if (name != slot.name || first != slot.first || count != slot.count)
        return refuse("it has " + std::string(name) + " where the server has " + slot.name +
                      ", or another size of it, or it was saved by another number of servers");
      slot.steps = in.take<std::int64_t>();
    }
    std::vector<float> values = take_floats(in);
    std::vector<std::vector<float>> states(states_.size());
    for (auto& state : states) state = take_floats(in);
    std::vector<float> mean_square = take_floats(in);
    const auto version = in.take<std::uint64_t>();
    const std::string_view rows = head.substr(head.size() - in.left());
    bool fits = values.size() == values_.size() && mean_square.size() == mean_square_.size();
    for (const auto& state : states) fits = fits && state.size() == values.size();
    if (!fits) return refuse("its arrays have other sizes");
    if (Answer refusal = load_rows(rows, pieces); refusal.outcome != Outcome::kDone) return refusal;
    slots_ = std::move(slots);
    values_ = std::move(values);
    states_ = std::move(states);
    mean_square_ = std::move(mean_square);
    version_ = std::max(version_, version);
  } catch (const Error& error) {
    if (error.code() == Errc::kUnavailable) throw;  // this server lacks memory
    if (error.code() == Errc::kInvalidArgument) return refuse(error.message());
    return refuse("it is malformed");
  }
  return {};
}

// As load(): all or nothing.
Answer Shard::load_rows(std::string_view head, const std::vector<std::string_view>& pieces) {
  Tables loaded = tables_.loaded(head, pieces, files_);
  const std::uint64_t now = tables_.memory_bytes(), then = loaded.memory_bytes();
  if (then > now && !has_room(then - now)) return full("the rows of the saved state", then - now);
  if (loaded.file_bytes() > std::max(files_.max_bytes, tables_.file_bytes()))
    return full_of_files("the rows of the saved state", loaded.file_bytes());
  tables_ = std::move(loaded);
  return {};
}

std::string Shard::snapshot() const { return snapshot_without_rows().append(tables_.snapshot()); }

std::string Shard::snapshot_without_rows() const {
  ByteWriter out;
  out.put(kStateVersion);
  out.put<std::uint8_t>(is_defined_);
  out.put_text(encode_options(options_));
  out.put(static_cast<std::uint32_t>(slots_.size()));
  for (const Slot& slot : slots_) {
    out.put_text(slot.name);
    out.put(slot.first);
    out.put(slot.count);
    out.put(slot.offset);
    out.put(slot.steps);
  }
  put_floats(out, values_);
  out.put(static_cast<std::uint32_t>(states_.size()));
  for (const auto& state : states_) put_floats(out, state);
  put_floats(out, mean_square_);
  out.put(static_cast<std::uint32_t>(workers_.size()));
  for (const auto& [number, worker] : workers_) {
    out.put(number);
    out.put(worker.client);
    out.put(worker.clock);
    out.put<std::uint8_t>(worker.counts);
    put_floats(out, worker.pulled);
  }
  out.put(static_cast<std::uint32_t>(clients_.size()));
  for (const auto& [number, client] : clients_) {
    out.put(number);
    out.put(client.last);
    out.put(static_cast<std::uint32_t>(client.answers.size()));
    for (const auto& [sequence, answer] : client.answers) {
      out.put(sequence);
      out.put_text(encode(answer));
    }
  }
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
  out.put(last_clock_);
  out.put(version_);
  out.put(used_bytes_);
  for (const std::uint64_t count : staleness_) out.put(count);
  return out.take();
}

void Shard::take_state(std::string_view bytes, bool has_rows) {
  ByteReader in(bytes);
  if (in.take<std::uint32_t>() != kStateVersion)
    throw Error(Errc::kCorrupt, "the state of a parameter server has another version");
  Shard fresh(memory_bytes_, remembers_, files_);
  fresh.is_defined_ = in.take<std::uint8_t>() != 0;
  fresh.options_ = decode_options(in.take_text());
  fresh.slots_.resize(in.take_count(4 * sizeof(std::int64_t)));
  for (Slot& slot : fresh.slots_) {
    slot.name = std::string(in.take_text());
    slot.first = in.take<std::int64_t>();
    slot.count = in.take<std::int64_t>();
    slot.offset = in.take<std::int64_t>();
    slot.steps = in.take<std::int64_t>();
  }
  fresh.values_ = take_floats(in);
  fresh.states_.resize(in.take_count(sizeof(std::uint64_t)));
  for (auto& state : fresh.states_) state = take_floats(in);
  fresh.mean_square_ = take_floats(in);
  for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
    Worker& worker = fresh.workers_[in.take<std::uint32_t>()];
    worker.client = in.take<std::uint64_t>();
    worker.clock = in.take<std::int64_t>();
    worker.counts = in.take<std::uint8_t>() != 0;
    worker.pulled = take_floats(in);
  }
  for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
    Client& client = fresh.clients_[in.take<std::uint64_t>()];
    client.last = in.take<std::uint64_t>();
    for (std::uint32_t answers = in.take<std::uint32_t>(); answers > 0; --answers) {
      const auto sequence = in.take<std::uint64_t>();
      client.answers[sequence] = decode_answer(in.take_text());
    }
  }
  for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
    auto& round = fresh.rounds_[in.take<std::int64_t>()];
    for (std::uint32_t pushes = in.take<std::uint32_t>(); pushes > 0; --pushes) {
      Buffered& push = round[in.take<std::uint32_t>()];
      push.lr = in.take<double>();
      push.keys.resize(in.take_count(sizeof(std::uint32_t)));
      for (std::uint32_t& key : push.keys) key = in.take<std::uint32_t>();
      push.values = take_floats(in);
    }
  }
  for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
    auto& round = fresh.row_rounds_[in.take<std::int64_t>()];
    for (std::uint32_t workers = in.take<std::uint32_t>(); workers > 0; --workers) {
      auto& pushes = round[in.take<std::uint32_t>()];
      for (std::uint32_t count = in.take<std::uint32_t>(); count > 0; --count)
        pushes.push_back(take_rows(in));
    }
  }
  fresh.last_clock_ = in.take<std::int64_t>();
  fresh.version_ = in.take<std::uint64_t>();
  fresh.used_bytes_ = in.take<std::uint64_t>();
  for (std::uint64_t& count : fresh.staleness_) count = in.take<std::uint64_t>();
  const std::string_view tables = bytes.substr(bytes.size() - in.left());
  fresh.tables_ = has_rows ? Tables::restored(tables, files_) : Tables::receiving(tables, files_);
  if (!fresh.is_consistent())
    throw Error(Errc::kCorrupt, "the state of a parameter server does not fit together");
  if (fresh.is_defined_) fresh.make_codecs();
  *this = std::move(fresh);
}

// Checks what the loops over the arrays rely on.
bool Shard::is_consistent() const {
  std::uint64_t offset = 0;
  for (const Slot& slot : slots_) {
    const auto count = static_cast<std::uint64_t>(slot.count);
    if (slot.count < 0 || slot.first < 0 || static_cast<std::uint64_t>(slot.offset) != offset ||
        count > values_.size() - offset)
      return false;
    offset += count;
  }
  bool fits = offset == values_.size();
  try {
    check(options_);
  } catch (const Error&) {
    return false;
  }
  fits = fits && states_.size() ==
                     (options_.rule && is_defined_ ? optim::state_names(*options_.rule).size() : 0);
  for (const auto& state : states_) fits = fits && state.size() == values_.size();
  fits = fits && mean_square_.size() ==
                     (options_.adaptive_compensation && is_defined_ ? values_.size() : 0);
  for (const auto& [number, worker] : workers_)
    fits = fits && (worker.pulled.empty() ? !worker.counts || worker_bytes() == 0
                                          : worker.pulled.size() == values_.size());
  for (const auto& [clock, round] : rounds_) {
    fits = fits && !round.empty();
    for (const auto& [worker, push] : round) {
      std::size_t count = 0;
      for (const std::uint32_t key : push.keys) {
        if (key >= slots_.size()) return false;
        count += static_cast<std::size_t>(slots_[key].count);
      }
      fits = fits && count == push.values.size();
    }
  }
  for (const auto& [clock, round] : row_rounds_) {
    for (const auto& [worker, pushes] : round) {
      for (const RowPush& push : pushes) {
        if (push.table >= tables_.size()) return false;
        const auto width = static_cast<std::size_t>(tables_.spec(push.table).row_floats);
        fits = fits && push.values.size() / width == push.keys.size() &&
               push.values.size() % width == 0;
      }
    }
  }
  return fits;
}

}  // namespace weft::ps::internal
