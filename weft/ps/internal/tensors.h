// The tensors of a shard: their pieces, values and codecs.
//
// Each key is a piece of a tensor. The pieces lie one after the other in the array of values.
// Deterministic: the same updates in the same order give the same bits. For one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/compress/codec.h"
#include "weft/ps/internal/request.h"
#include "weft/ps/internal/state_bytes.h"
#include "weft/ps/internal/tensor_updates.h"

namespace weft::ps::internal {

// Values of these keys, one after the other.
struct TensorPush {
  std::vector<std::uint32_t> keys;
  std::vector<float> values;
  double lr = -1;  // below 0: that of the rule
};

class Tensors {
 public:
  using Keys = std::vector<std::uint32_t>;

  Tensors() = default;  // not defined
  // Throws as check(Options). `definition`: as many values as its parts have.
  explicit Tensors(const Definition& definition);

  bool is_defined() const { return is_defined_; }
  const Options& options() const { return options_; }
  std::vector<Definition::Part> parts() const;
  const std::vector<float>& values() const { return values_; }
  std::uint64_t bytes() const {
    return is_defined_ ? TensorUpdates::bytes(options_, values_.size()) : 0;
  }
  // True if the shard keeps what each worker has pulled.
  bool keeps_pulled() const { return options_.delay_compensation > 0 || options_.pull_deltas; }

  // The refusal of keys that do not exist or repeat; kDone if there are none.
  Answer check_keys(const Request& request) const;
  double lr() const;  // of the rule; below 0: there is none, pushes are deltas
  // The refusal of a learning rate that is not finite, or of deltas.
  Answer check_lr(const Request& push) const;
  // All keys, if the request names none.
  Keys keys_of(const Request& request) const;
  std::size_t count_of(const Keys& keys) const;

  // Decodes the values of a push, which stay until the next call. Returns a refusal if they have
  // another number or are not finite. `step`: of the worker, for the text.
  Answer decode(const Request& push, std::int64_t step, std::span<const float>& values);
  // Updates by one push. `pulled`: the values that the worker has; empty: no delay compensation.
  void update(const Keys& keys, std::span<const float> values, double lr,
              std::span<const float> pulled);
  // Updates by the mean of each key over the pushes of a step, by worker. Of deltas: their sum.
  void update(const std::map<std::uint32_t, TensorPush>& pushes);

  // Bytes of the values through the codec of pulls, and the values.
  std::size_t pull_bytes(const Keys& keys) const;
  void read(const Keys& keys, std::span<std::byte> out) const;
  void copy(const Keys& keys, std::span<float> pulled) const;
  // Payload of a kPullDelta. Changes `pulled` as the worker will change its values, and counts in
  // `encoded`, by piece, how often the codec was used.
  std::string difference(const Request& pull, std::span<float> pulled,
                         std::vector<std::uint32_t>& encoded) const;

  void put(ByteWriter& out) const;
  // Throws Error(kCorrupt).
  static Tensors taken(ByteReader& in);
  // The same without what a definition has, for checkpoints.
  void save(ByteWriter& out) const;
  // These tensors with what save() wrote. Options may differ, but not the arrays. Throws
  // Error(kInvalidArgument) with what differs, and Error(kCorrupt).
  Tensors loaded(ByteReader& in) const;
  bool has(const TensorPush& push) const;

 private:
  struct Slot {
    std::string name;
    std::int64_t first = 0;  // in the tensor
    std::int64_t count = 0;
    std::int64_t offset = 0;  // in values_
    std::int64_t steps = 0;   // updates of this piece
  };

  void make_codecs();
  bool is_consistent() const;
  void update(std::uint32_t key, const float* gradient, double lr, std::span<const float> pulled);

  bool is_defined_ = false;
  Options options_;
  std::vector<Slot> slots_;
  std::vector<float> values_;
  TensorUpdates updates_;

  // Not part of the state.
  std::unique_ptr<compress::Codec> push_codec_, pull_codec_, delta_codec_;
  std::uint64_t push_seed_ = 1, delta_seed_ = 1;
  std::vector<float> scratch_;
};

}  // namespace weft::ps::internal
