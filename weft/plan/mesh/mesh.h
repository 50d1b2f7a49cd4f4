// MeshLayout: the ranks on named axes, as numbers. weft/parallel/mesh makes groups of them.
//
//   MeshLayout(8, {{"pp", 2}, {"dp", 2}, {"tp", 2}})        host 0            host 1
//                                                     dp 0: 0 ─tp─ 1     pp 1: 4 ─tp─ 5
//   rank = (pp * 2 + dp) * 2 + tp                           │dp    │           │      │
//   the last axis joins neighbors                     dp 1: 2 ─tp─ 3           6 ─tp─ 7
//
// Axes: dp data parallel (replicas), fsdp sharded data parallel, tp tensor, cp context (sequence),
// ep expert, pp pipeline. They may come in any order. Put the axis that communicates most last, so
// that its ranks share a host.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::plan {

struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

class MeshLayout {
 public:
  // The product of the sizes is `world`. One size may be 0 and takes all ranks that are left.
  // Throws Error(kBadConfig) for an unknown or repeated axis, and for sizes that do not make
  // `world`, with the nearest sizes that do.
  MeshLayout(int world, std::vector<Axis> axes);

  int world() const { return world_; }
  const std::vector<Axis>& axes() const { return axes_; }
  // Size of an axis; 1 for an axis of the field that this mesh lacks. Throws
  // Error(kInvalidArgument) for another name.
  int size(std::string_view axis) const;
  // Place of `rank` along an axis, from 0.
  int coordinate(int rank, std::string_view axis) const;
  // Ranks that differ from `rank` along the axes `along` alone, `rank` included. Ascending by
  // coordinates in the mesh's order of axes.
  std::vector<int> members(int rank, const std::vector<std::string>& along) const;
  // As members(), ascending by coordinates in the order of `along`.
  std::vector<int> members_in_order(int rank, const std::vector<std::string>& along) const;
  // All groups along an axis, each as members() returns it.
  std::vector<std::vector<int>> groups(const std::string& axis) const;
  // One line: "pp 2 x dp 2 x tp 2".
  std::string describe() const;

 private:
  int stride(const Axis& axis) const;  // one of axes_
  const Axis* find(std::string_view axis) const;

  int world_;
  std::vector<Axis> axes_;
};

// Parses "dp=2,tp=2". Throws Error(kBadConfig).
std::vector<Axis> parse_axes(std::string_view text);
// Inverse of parse_axes().
std::string to_text(const std::vector<Axis>& axes);

// Product of the axes that keep their sizes in refit(). The number of ranks must be a multiple of
// it.
int fixed_size(const std::vector<Axis>& axes);

// The mesh of a run as a setting: axes, or "auto", for axes that the run chooses by measurement at
// its start.
//
//   options.mesh = "fsdp=2,pp=2";
class MeshSpec {
 public:
  // "auto", or as parse_axes(). Throws Error(kBadConfig).
  MeshSpec(const std::string& text);                           // NOLINT: texts stand for it
  MeshSpec(const char* text) : MeshSpec(std::string(text)) {}  // NOLINT: texts stand for it
  // At least one axis. Throws Error(kInvalidArgument).
  explicit MeshSpec(std::vector<Axis> axes);

  bool is_auto() const { return axes_.empty(); }
  // Throws Error(kInvalidArgument) if is_auto().
  const std::vector<Axis>& axes() const;
  // "auto" or "fsdp=2,pp=2".
  std::string text() const;
  bool operator==(const MeshSpec&) const = default;

 private:
  std::vector<Axis> axes_;  // Empty: "auto".
};

// The axes for another number of ranks: dp changes, then fsdp; the others stay, since a model is
// cut for them. Throws Error(kBadConfig) if the others do not divide `world`.
std::vector<Axis> refit(std::vector<Axis> axes, int world);

}  // namespace weft::plan
