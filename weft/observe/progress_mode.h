// How progress is shown.
#pragma once

namespace weft::observe {

// kAuto: a bar on a terminal, else lines. kJson: a line of JSON for each report. kNone: nothing.
enum class ProgressMode { kAuto, kBar, kLines, kJson, kNone };

}  // namespace weft::observe
