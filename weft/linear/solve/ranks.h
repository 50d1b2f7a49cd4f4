// Ranks: how the solvers of this folder reach the other ranks of their job. The folder has no
// torch; weft/linear implements this over comm::Group.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::linear {

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Sums over all ranks, and the largest values, in place. Collective: all ranks pass arrays of
  // the same length. Every rank ends with the same bits. Throws if a rank is lost.
  virtual void sum(std::span<double> values) = 0;
  virtual void max(std::span<double> values) = 0;
  // Every rank's bytes, by rank. Collective.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
  // Sends to[r] to rank r; returns what each rank sent to this one. Collective; consumes `to`.
  virtual std::vector<std::string> exchange(std::vector<std::string> to) = 0;
  // Bytes that this rank has exchanged with others since it was made: messages, and memory of
  // others that it has read.
  virtual std::uint64_t exchanged_bytes() const = 0;
  // True if a sum costs about as much as reading the other ranks' memory.
  virtual bool in_memory() const = 0;
};

// One rank by itself.
class Alone final : public Ranks {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void sum(std::span<double>) override {}
  void max(std::span<double>) override {}
  std::vector<std::string> gather(const std::string& mine) override { return {mine}; }
  std::vector<std::string> exchange(std::vector<std::string> to) override { return to; }
  std::uint64_t exchanged_bytes() const override { return 0; }
  bool in_memory() const override { return true; }
};

}  // namespace weft::linear
