"""What shipped commands need of the proof: the demo's target, and stores and faults without disks.

Nothing here takes part in what a broker decides or sends.
"""
