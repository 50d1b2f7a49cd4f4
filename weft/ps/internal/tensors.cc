#include "weft/ps/internal/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "weft/compress/spec.h"
#include "weft/kernels/reduce.h"
#include "weft/ps/internal/codecs.h"

namespace weft::ps::internal {
Tensors::Tensors(const Definition& definition)
    : is_defined_(true),
      options_(definition.options),
      values_(definition.values.size() / sizeof(float)),
      updates_(options_, values_.size()) {
  std::int64_t offset = 0;
  for (const Definition::Part& part : definition.parts) {
    slots_.push_back({part.name, part.first, part.count, offset});
    offset += part.count;
  }
  if (!values_.empty())
    std::memcpy(values_.data(), definition.values.data(), definition.values.size());
  make_codecs();
}

void Tensors::make_codecs() {
  push_codec_ = codec_of(options_.push_codec);
  (options_.pull_deltas ? delta_codec_ : pull_codec_) = codec_of(options_.pull_codec);
  push_seed_ = compress::parse(options_.push_codec).seed;
  delta_seed_ = compress::parse(options_.pull_codec).seed;
}

std::vector<Definition::Part> Tensors::parts() const {
  std::vector<Definition::Part> parts;
  for (const Slot& slot : slots_) parts.push_back({slot.name, slot.first, slot.count});
  return parts;
}

Answer Tensors::check_keys(const Request& request) const {
  std::set<std::uint32_t> seen;
  for (const std::uint32_t key : request.keys) {
    if (key == kNoKeys && request.keys.size() == 1) break;
    if (key >= slots_.size())
      return invalid("key " + std::to_string(key) + " does not exist; this shard has " +
                     std::to_string(slots_.size()) + " keys");
    if (!seen.insert(key).second)
      return invalid("tensor " + slots_[key].name + " is named twice in one request");
  }
  return {};
}

double Tensors::lr() const { return options_.rule ? optim::lr_of(*options_.rule) : -1; }

Answer Tensors::check_lr(const Request& push) const {
  const std::string who = "worker " + std::to_string(push.worker) + " pushed with a learning rate";
  if (!std::isfinite(push.lr)) return invalid(who + " that is not finite; nothing was changed");
  if (push.lr < 0 || options_.rule) return {};
  return invalid(who + ", and this parameter server adds deltas as they are; nothing was changed");
}

Tensors::Keys Tensors::keys_of(const Request& request) const {
  if (request.keys == std::vector{kNoKeys}) return {};
  if (!request.keys.empty()) return request.keys;
  Keys all(slots_.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint32_t>(i);
  return all;
}

std::size_t Tensors::count_of(const Keys& keys) const {
  std::size_t count = 0;
  for (const std::uint32_t key : keys) count += static_cast<std::size_t>(slots_[key].count);
  return count;
}

Answer Tensors::decode(const Request& push, std::int64_t step, std::span<const float>& values) {
  const Keys keys = keys_of(push);
  const std::size_t count = count_of(keys);
  const std::string who = "worker " + std::to_string(push.worker) + " pushed ";
  const auto wrong = [&](const std::string& bytes) {
    return invalid(
        who + bytes + " for " + std::to_string(count) + " values of " +
        (keys.size() == 1 ? slots_[keys[0]].name : std::to_string(keys.size()) + " tensors") +
        "; the shape must be that of define(), and push_codec that of the server");
  };
  const bool is_coded = push_codec_ && !push.exact;
  if (!is_coded && push.payload.size() != sizeof(float) * count)
    return wrong(std::to_string(push.payload.size()) + " bytes");
  if (!is_coded && reinterpret_cast<std::uintptr_t>(push.payload.data()) % alignof(float) == 0) {
    values = {reinterpret_cast<const float*>(push.payload.data()), count};
  } else {
    scratch_.assign(count, 0);
    values = scratch_;
    if (!is_coded && count > 0)
      std::memcpy(scratch_.data(), push.payload.data(), push.payload.size());
  }
  if (is_coded) {
    std::string_view rest = push.payload;
    std::span<float> out(scratch_);
    for (const std::uint32_t key : keys) {
      const auto here = static_cast<std::size_t>(slots_[key].count);
      try {
        decode_values(*push_codec_, rest, draw_of(push_seed_, push, key), out.first(here));
      } catch (const Error& error) {
        return wrong("malformed codes (" + error.message() + ")");
      }
      out = out.subspan(here);
    }
    if (!rest.empty()) return wrong("too many bytes");
  }
  const float* at = values.data();
  for (const std::uint32_t key : keys) {
    const Slot& slot = slots_[key];
    if (!kernels::is_within(at, slot.count, std::numeric_limits<float>::max())) {
      const auto bad =
          std::find_if(at, at + slot.count, [](float value) { return !std::isfinite(value); });
      return invalid(who + (std::isnan(*bad) ? "NaN" : "infinity") + " for " + slot.name + "[" +
                     std::to_string(slot.first + (bad - at)) + "] at its step " +
                     std::to_string(step) + "; the push is refused, and nothing was changed");
    }
    at += slot.count;
  }
  return {};
}

void Tensors::update(const Keys& keys, std::span<const float> values, double lr,
                     std::span<const float> pulled) {
  const float* at = values.data();
  for (const std::uint32_t key : keys) {
    update(key, at, lr, pulled);
    at += slots_[key].count;
  }
}

void Tensors::update(const std::map<std::uint32_t, TensorPush>& pushes) {
  for (std::uint32_t key = 0; key < slots_.size(); ++key) {
    std::vector<const void*> sources;  // in the order of the workers' numbers
    for (const auto& [number, push] : pushes) {
      const float* at = push.values.data();
      for (const std::uint32_t other : push.keys) {
        if (other == key) sources.push_back(at);
        at += slots_[other].count;
      }
    }
    if (sources.empty()) continue;
    scratch_.resize(static_cast<std::size_t>(slots_[key].count));
    void* const sum = scratch_.data();
    kernels::ReduceArgs args{.count = slots_[key].count};
    if (options_.rule) args.op = ReduceOp::kAvg;
    kernels::reduce(&sum, 1, sources.data(), static_cast<int>(sources.size()), args);
    update(key, scratch_.data(), pushes.begin()->second.lr, {});
  }
}

void Tensors::update(std::uint32_t key, const float* gradient, double lr,
                     std::span<const float> pulled) {
  Slot& slot = slots_[key];
  updates_.apply({slot.offset, slot.count, ++slot.steps, gradient, lr, pulled}, values_);
}

std::size_t Tensors::pull_bytes(const Keys& keys) const {
  if (!pull_codec_) return sizeof(float) * count_of(keys);
  std::size_t bytes = 0;
  for (const std::uint32_t key : keys)
    bytes += static_cast<std::size_t>(pull_codec_->bytes(slots_[key].count));
  return bytes;
}

void Tensors::read(const Keys& keys, std::span<std::byte> out) const {
  std::vector<std::byte> wire;
  for (const std::uint32_t key : keys) {
    const Slot& slot = slots_[key];
    const float* const values = values_.data() + slot.offset;
    const auto count = static_cast<std::size_t>(slot.count);
    std::size_t size = sizeof(float) * count;
    const void* from = values;
    if (pull_codec_) {
      wire.clear();
      pull_codec_->encode({values, count}, {}, wire, nullptr);
      from = wire.data();
      size = wire.size();
    }
    if (size > 0) std::memcpy(out.data(), from, size);
    out = out.subspan(size);
  }
}

void Tensors::copy(const Keys& keys, std::span<float> pulled) const {
  for (const std::uint32_t key : keys)
    std::copy_n(values_.begin() + slots_[key].offset, slots_[key].count,
                pulled.begin() + slots_[key].offset);
}

// The worker and this shard add the same codes to the same values. So the shard knows what the
// worker has, and its next difference has what the codec has left out.
std::string Tensors::difference(const Request& pull, std::span<float> pulled,
                                std::vector<std::uint32_t>& encoded) const {
  encoded.resize(slots_.size());
  const bool whole = pull.version != 0;
  std::string payload;
  for (const std::uint32_t key : keys_of(pull)) {
    const auto count = static_cast<std::size_t>(slots_[key].count);
    const float* const now = values_.data() + slots_[key].offset;
    const std::span<float> has(pulled.data() + slots_[key].offset, count);
    std::vector<float> sent(now, now + count);
    if (!whole)
      for (std::size_t i = 0; i < count; ++i) sent[i] -= has[i];
    if (whole || !delta_codec_) {
      payload.append(reinterpret_cast<const char*>(sent.data()), sizeof(float) * count);
      for (std::size_t i = 0; i < count; ++i) has[i] = whole ? sent[i] : has[i] + sent[i];
      continue;
    }
    const compress::Draw draw = draw_of(delta_seed_, pull, key, encoded[key]++);
    const std::string codes = encode_values(*delta_codec_, sent, draw, nullptr);
    payload += codes;
    std::string_view rest(codes);
    decode_values(*delta_codec_, rest, draw, has);
  }
  return payload;
}

void Tensors::put(ByteWriter& out) const {
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
  updates_.put(out);
}

Tensors Tensors::taken(ByteReader& in) {
  Tensors taken;
  taken.is_defined_ = in.take<std::uint8_t>() != 0;
  taken.options_ = decode_options(in.take_text());
  taken.slots_.resize(in.take_count(4 * sizeof(std::int64_t)));
  for (Slot& slot : taken.slots_) {
    slot.name = std::string(in.take_text());
    slot.first = in.take<std::int64_t>();
    slot.count = in.take<std::int64_t>();
    slot.offset = in.take<std::int64_t>();
    slot.steps = in.take<std::int64_t>();
  }
  taken.values_ = take_floats(in);
  taken.updates_ = TensorUpdates::taken(in, taken.options_);
  require_fit(taken.is_consistent());
  if (taken.is_defined_) taken.make_codecs();
  return taken;
}

// Checks what the loops over the arrays rely on.
bool Tensors::is_consistent() const {
  std::uint64_t offset = 0;
  for (const Slot& slot : slots_) {
    const auto count = static_cast<std::uint64_t>(slot.count);
    if (slot.count < 0 || slot.first < 0 || static_cast<std::uint64_t>(slot.offset) != offset ||
        count > values_.size() - offset)
      return false;
    offset += count;
  }
  try {
    check(options_);
  } catch (const Error&) {  // the caller refuses the snapshot
    return false;
  }
  return offset == values_.size() && updates_.fits(values_.size(), is_defined_);
}

bool Tensors::has(const TensorPush& push) const {
  for (const std::uint32_t key : push.keys)
    if (key >= slots_.size()) return false;
  return count_of(push.keys) == push.values.size();
}

void Tensors::save(ByteWriter& out) const {
  out.put_text(encode_options(options_));
  out.put(static_cast<std::uint32_t>(slots_.size()));
  for (const Slot& slot : slots_) {
    out.put_text(slot.name);
    out.put(slot.first);
    out.put(slot.count);
    out.put(slot.steps);
  }
  put_floats(out, values_);
  updates_.save(out);
}

Tensors Tensors::loaded(ByteReader& in) const {
  // The learning rate and the mode may have changed, but the arrays must be the same.
  const Options saved = decode_options(in.take_text());
  const bool same_rule =
      saved.rule.has_value() == options_.rule.has_value() &&
      (!saved.rule || (saved.rule->index() == options_.rule->index() &&
                       optim::state_names(*saved.rule) == optim::state_names(*options_.rule)));
  WEFT_REQUIRE(same_rule && saved.adaptive_compensation == options_.adaptive_compensation,
               "it is that of another update rule");
  Tensors loaded;
  loaded.is_defined_ = true;
  loaded.options_ = options_;
  loaded.slots_ = slots_;
  WEFT_REQUIRE(in.take_count(2 * sizeof(std::int64_t)) == slots_.size(),
               "it has another number of tensors in this shard");
  for (Slot& slot : loaded.slots_) {
    const std::string_view name = in.take_text();
    const auto first = in.take<std::int64_t>(), count = in.take<std::int64_t>();
    WEFT_REQUIRE(name == slot.name && first == slot.first && count == slot.count,
                 "it has " + std::string(name) + " where the server has " + slot.name +
                     ", or another size of it, or it was saved by another number of servers");
    slot.steps = in.take<std::int64_t>();
  }
  loaded.values_ = take_floats(in);
  loaded.updates_ = updates_.loaded(in);
  WEFT_REQUIRE(loaded.is_consistent(), "its arrays have other sizes");
  loaded.make_codecs();
  return loaded;
}

}  // namespace weft::ps::internal
