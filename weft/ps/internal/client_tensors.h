// The tensors of a client: where their values and gradients lie in the shared memory, and how they
// go through the codecs.
//
//   shared memory:  `pipeline` slots of pushes │ two areas of values
//
// Each tensor has its last pulled values in one area; the next pull writes to the other one. A slot
// is free when its push is answered. One pull at a time. For the thread of the client.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/compress/codec.h"
#include "weft/ps/internal/client_requests.h"

namespace weft::ps::internal {

class ClientTensors {
 public:
  using Ticket = Client::Ticket;

  explicit ClientTensors(ClientRequests& requests) : requests_(requests) {}

  void define(const std::vector<Tensor>& tensors, const Options& options);
  // The definition of a shard: its pieces and their values, without tables.
  Definition definition_of(std::uint32_t shard, const std::vector<Tensor>& tensors) const;
  // Bytes of slots and areas, which begin at the first byte of the shared memory.
  std::uint64_t memory_bytes() const;

  // As the calls of Client. A call that begins a push needs a worker.
  std::span<float> gradient(const std::string& name);
  Ticket push(const std::vector<std::string>& names, double lr, Coding coding);
  Ticket pull(const std::vector<std::string>& names, Coding coding);
  std::span<const float> value(const std::string& name) const;

  // The answer to a push or pull.
  void take(const Request& request, const Answer& answer, std::string_view payload);
  // A server has refused it. The codec of pushes then has what it had before the push.
  void take_refusal(const Request& request);
  // The ticket is closed. If it was that of the pull: its values count, or not.
  void finish(Ticket ticket, bool is_done);
  // The servers do not know any more what this worker has.
  void forget_known();

 private:
  struct Place {
    std::size_t count = 0;
    std::size_t offset = 0;  // in elements, in each area
    int area = 0;            // with the values of the last complete pull
    bool is_known = false;   // the servers know these values: a pull may give differences
  };
  struct Shard {
    std::vector<Piece> pieces;
    std::uint64_t version = 0;           // of the last pull
    std::vector<std::uint32_t> encoded;  // by piece: how often it went through the codec of pushes
  };
  // The last push from a part of the shared memory.
  struct Slot {
    Ticket ticket = 0;                    // 0: none
    std::vector<std::uint64_t> requests;  // by shard: number of the request
    std::vector<float> undo;  // by element: the residual before the push less that after
  };
  struct Pull {
    Ticket ticket = 0;
    std::vector<bool> tensors;
    bool exact = false;  // without a codec
  };

  std::size_t find(const std::string& name) const;
  std::vector<bool> choose(const std::vector<std::string>& names) const;
  void check_finite(const std::string& name, const float* values, std::size_t count) const;
  void load(Outstanding& push, Shard& shard, const std::vector<bool>& chosen, const float* values);
  void pull_shard(std::uint32_t number, const std::vector<bool>& chosen, Ticket ticket);
  void pull_deltas(std::uint32_t number, const std::vector<bool>& chosen, Ticket ticket);
  void take_values(const Request& pull, std::string_view payload);
  void take_deltas(const Request& pull, std::string_view payload);
  void free_slot() { requests_.wait(slots_[slot_].ticket, requests_.patience()); }
  float* slot() const { return reinterpret_cast<float*>(requests_.memory() + slot_ * stride_); }
  float* area(int number) const;
  // Offset of a piece in an area, in elements.
  std::size_t offset_of(const Piece& piece) const {
    return tensors_[piece.tensor].offset + static_cast<std::size_t>(piece.first);
  }

  ClientRequests& requests_;
  Options options_;
  std::vector<Place> tensors_;
  std::map<std::string, std::size_t> index_;
  std::vector<Shard> shards_;
  std::uint64_t stride_ = 0;  // bytes of a slot or area
  std::vector<Slot> slots_;
  std::size_t slot_ = 0;
  std::optional<Pull> pull_;
  std::unique_ptr<compress::Codec> push_codec_, pull_codec_, delta_codec_;
  std::vector<float> residual_;
};

}  // namespace weft::ps::internal
