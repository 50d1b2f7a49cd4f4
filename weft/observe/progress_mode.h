// ProgressMode: how a run shows its progress.
#pragma once

namespace weft::observe {

// kAuto: a bar on a terminal, otherwise lines. kJson: one line of JSON for each report. kNone:
// nothing.
enum class ProgressMode { kAuto, kBar, kLines, kJson, kNone };

}  // namespace weft::observe
